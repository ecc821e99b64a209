"""One streaming parser: the text of an answer to reasoning, content and tool calls.

    text + marks -> markers -> states -> events

``Format`` (``base``) is a ``ParserSpec`` (``spec``) bound to a tokenizer, made once a server; ``Format.open`` gives a
``ParserStream`` (``stream``) an answer. A marker that is one added token of the tokenizer matches by its id, and text
that looks like it is prose; where the tokenizer has no such token it matches as text. What is told does not depend on
how the answer was cut, so that a whole answer is the same fed at once.

A new format is one file in ``formats`` and one line in ``registry`` for each of its names. The file holds a
``ParserSpec``:

* ``table``: for each state the markers that lead out of it. States have roles: CONTENT and REASONING are told; WRAP is
  the wrapper in front of a call's name, NAME the name (or a header that ``header`` reads), ARGS the arguments, BETWEEN
  is behind a call. A state of its own needs a line in ``roles``. Markers that a state does not name are its text.
  ``To(state, keep=True)``: the marker is the first text of the new state, such as the "{" of a JSON object.
* ``args``: how arguments are written: ``Json`` (an object behind a header), ``JsonCall`` (an object that has the name
  in it, or a list of such), ``Tags`` (a pair of tags a parameter; ``tag_rows`` makes the rows), ``Python``, and
  ``Json`` in another ``Notation`` (Gemma's).
* ``think``: the markers of reasoning. What follows from them needs no rows: a call ends reasoning, a second end marker
  means nothing, the prompt or the template's switches tell whether it is open at the beginning.
* ``hints``: what a chat template of this format holds, for ``auto``.
* ``grammar``: the texts around a call, for tool_choice required and strict tools.
* ``tokens``: the markers that are special tokens of the family's tokenizers; ``examples``: what the model writes and
  what it means; the first of a format with calls has ``get_weather(city="Paris", days=3)`` and ``now()``.
  ``tests/unit/front/parsers/test_formats.py`` takes every format of the registry through all properties with them:
  cuts, truncation, garbage, look-alikes, indexes, long arguments. A format needs no other test, but may have its own.

Without tools in the request nothing is a call: markup is content as it was written. Markup that comes to no call (no
name, broken before it) is content too; a call that breaks off keeps what was received, in both modes.
"""
