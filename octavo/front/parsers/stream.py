"""ParserStream: the text of one answer to reasoning, content and calls, as it comes.

Longer than other modules: it is one machine, and every part of it goes by the same state.
"""

from collections.abc import Sequence

from octavo.front.parsers.arguments import Reader, reader
from octavo.front.parsers.calls import Calls
from octavo.front.parsers.events import Event, merged
from octavo.front.parsers.prose import Counter, Prose
from octavo.front.parsers.spec import AFTER, ANSWER, ARGS, BETWEEN, CONTENT, VALUE, JsonCall, Python, Role, Tags, To
from octavo.front.parsers.table import RAW, State, Table
from octavo.front.parsers.tags import TagWriter

#: Characters of a name, a key or a header.
_HEAD = 512
#: White space behind what may be a value's end.
_SPACE = 64

#: Roles of states that are no part of a call's markup, and with them those that can only begin one.
_PLAIN = (Role.CONTENT, Role.REASONING, Role.BETWEEN)
_OUTSIDE = (*_PLAIN, Role.WRAP, Role.LABEL, Role.NAME)


class ParserStream:
    """One answer. ``feed`` it what the detokenizer tells, ``finish`` it once.

    What it tells does not depend on how the text was cut. Markup that turns out to be no call (no name, no JSON) is
    content as it was written; a call whose arguments go wrong or stop ends where they do.

    ``begin``: the state of its first character. ``reasoning`` False: reasoning is read and not told. ``keep``: special
    tokens that the format does not know are content instead of nothing. ``hold``: reasoning is told when content or a
    call follows it; where none does, it is the content.
    """

    def __init__(
        self,
        table: Table,
        calls: Calls,
        begin: str,
        *,
        reasoning: bool = True,
        keep: bool = False,
        hold: bool = False,
    ):
        self._table, self._calls = table, calls
        self._events = calls.events
        self._keep = keep
        think = table.spec.think
        #: Markers that are never content.
        self._silent = {think.end, *think.ends, *dict(think.answers).values()} if think is not None else set()
        self._prose = Prose(calls.events, think, reasoning, hold)
        self._counter = Counter(table.added)
        self._state: State = table.states[begin]
        if self._state.role is Role.REASONING:
            self._prose.entered_reasoning()
        self._held = ""
        #: The last character read, "\n" at the beginning and behind a marker.
        self._last = "\n"
        #: Characters still to come of a special token's text.
        self._swallow = 0
        #: Inside of the markers around an answer, also in its calls.
        self._answer = False
        #: Everything since the markup of a call began whose name is not known yet.
        self._raw: list[str] | None = [] if self._state.role is Role.NAME else None
        self._head: list[str] = []
        self._head_size = 0
        self._after: list[str] = []
        self._reader: Reader | None = None
        self._tags: TagWriter | None = None
        #: A call was cut short or could not be read to its end.
        self.truncated = False
        self.finished = False

    @property
    def calls(self) -> int:
        """Calls begun so far."""
        return self._calls.count

    @property
    def reasoning_tokens(self) -> int:
        """Tokens told in reasoning, markers not counted."""
        return self._counter.reasoning

    @property
    def reasoning_over(self) -> bool:
        """Whether what comes is outside of reasoning."""
        return self._state.role is not Role.REASONING

    def feed(self, text: str, marks: Sequence[tuple[int, int]] = (), tokens: Sequence[int] = ()) -> list[Event]:
        """``marks``: (offset in ``text``, id) of every added token in it, in order. ``tokens``: the ids that came, for
        ``reasoning_tokens``."""
        assert not self.finished
        self._counter.add(tokens)
        at = min(self._swallow, len(text))
        self._swallow -= at
        for offset, token in marks:
            literal = self._table.added.get(token)
            if literal is None:
                continue
            if offset > at:
                self._text(text[at:offset])
                at = offset
            self._counter.until(token, not self.reasoning_over)
            self._special(literal)
            rest = text[offset : offset + len(literal)]
            if literal.startswith(rest):
                at = offset + len(rest)
                self._swallow = len(literal) - len(rest)
        if at < len(text):
            self._text(text[at:] if at else text)
        self._counter.rest(not self.reasoning_over)
        return self._news()

    def finish(self, stopped: bool = False) -> list[Event]:
        """What was held back. ``stopped``: the model ended the answer itself, so that a call whose values are all there
        is whole even without its last marker. Never raises."""
        if self.finished:
            return []
        held, role = self._held, self._state.role
        if role in (Role.VALUE, Role.KEY, Role.ARGS, Role.AFTER) and not self._inside:
            self._held = ""  # the beginning of a marker, of a call that was cut
            self._note(held)
        self._text("", last=True)
        self._end(stopped)
        self.finished = True
        return self._news()

    def _news(self) -> list[Event]:
        if not self._events:
            return []
        found = merged(self._events)
        self._events.clear()
        return found

    # Reading.

    def _text(self, text: str, last: bool = False) -> None:
        """Ordinary text. ``last``: what may be the beginning of a marker is none, since nothing comes behind it."""
        if self._held:
            text, self._held = self._held + text, ""
        at = 0
        while at < len(text):
            state = self._state
            end, marker = len(text), ""
            if state.lexicon is not None:
                end, marker = state.lexicon.find(text, at, last)
            if end > at:
                chunk = text[at:end] if at or end < len(text) else text
                used = self._data(chunk)
                at += used
                self._last = text[at - 1] if used else self._last
                if used < len(chunk) or self._state is not state:
                    continue  # the rest is another state's
            if not marker:
                self._held = text[at:]
                return
            if not self._counts(marker):
                used = self._data(text[at])
                at += used
                self._last = text[at - 1] if used else self._last
            elif marker in state.marks:
                self._quote(marker)
                at += len(marker)
            else:
                to = state.row[marker]
                at += 0 if to.keep else len(marker)
                self._go(to, marker)

    def _counts(self, marker: str) -> bool:
        """Whether a marker that is text, and stands next, is one here."""
        state = self._state
        if marker in state.marks:
            return self._quotes(marker)
        to = state.row[marker]
        if state.role is Role.NAME and isinstance(self._table.states[to.state].style, JsonCall | Python):
            return not "".join(self._head).strip()
        return not (self._inside or (to.line and self._last != "\n") or (to.first and not self._prose.blank))

    @property
    def _inside(self) -> bool:
        """In a string of arguments: markers are data."""
        return self._state.role is Role.ARGS and self._reader is not None and self._reader.inside

    def _quotes(self, literal: str) -> bool:
        return literal in self._state.marks and self._reader is not None and self._reader.quotes(literal)

    def _quote(self, literal: str) -> None:
        assert self._reader is not None
        self._reader.mark(literal)
        self._note(literal)

    def _special(self, literal: str) -> None:
        """A special token."""
        if self._held:
            self._text("", last=True)
        if self._state.role is Role.AFTER and literal in self._table.named and literal not in self._state.row:
            self._reopen()
        state = self._state
        if literal not in self._table.named:
            if self._keep and state.role in (Role.CONTENT, Role.REASONING, Role.BETWEEN):
                self._plain(literal)
            return
        if self._quotes(literal):
            self._quote(literal)
            return
        to = state.row.get(literal)
        if to is None or (to.first and not self._prose.blank) or self._inside:
            self._plain(literal)
            return
        self._go(to, literal)
        if to.keep:
            self._plain(literal)

    def _plain(self, text: str) -> None:
        """A special token that is data here."""
        at = 0
        while at < len(text):
            at += self._data(text[at:])
        self._last = text[-1:]

    def _data(self, text: str) -> int:
        """Text without markers, by the role of the state. How much of it was used before the state changed."""
        state = self._state
        role = state.role
        if role in (Role.CONTENT, Role.BETWEEN):
            self._prose.content(text)
        elif role is Role.REASONING:
            self._prose.reasoning(text)
        elif role is Role.ARGS:
            return self._arguments(text)
        elif role is Role.VALUE:
            assert self._tags is not None
            self._tags.value(text)
        elif role in (Role.NAME, Role.KEY):
            return self._header(text)
        elif role is Role.WRAP:
            space = len(text) - len(text.lstrip())
            self._note(text[:space])
            if space < len(text):
                self._degrade()
            return space
        elif role is Role.AFTER:
            return self._behind(text)
        else:
            self._note(text)
        return len(text)

    def _go(self, to: To, marker: str) -> None:
        """Follow ``marker`` to another state, doing what leaving the old one and entering the new one mean."""
        old, new = self._state, self._table.states[to.state]
        ends = marker in self._silent
        if new.name == CONTENT and self._answer and not ends:
            new = self._table.states[ANSWER]
        self._answer = new.name == ANSWER or (self._answer and not ends)
        if old.name == RAW and new.role is Role.CONTENT and not ends:
            self._prose.content(marker)
            self._state, self._last = new, marker[-1]
            return
        self._last = "\n"
        if old.role is Role.REASONING and new.role is not Role.REASONING:
            self._prose.left_reasoning(marker if ends else "")
        if old.role is Role.NAME and self._named(new, "" if to.keep else marker):
            return
        self._leave_tag(old, new)
        if new.role in _OUTSIDE and (old.role not in (Role.WRAP, Role.LABEL) or new.role in _PLAIN):
            if self._calls.is_open:
                self._close_call()
            elif self._raw is not None:
                # Markup that came to no call. What begins the next is part of that.
                self._degrade(marker if new.role in _PLAIN else "")
            self._reader = None
        if old.role is Role.BETWEEN and new.role is Role.CONTENT:
            self._prose.drop()  # it stood inside of the wrapper
        elif ANSWER in (old.name, new.name) and new.role is Role.CONTENT:
            self._prose.edge()
        self._enter(new, "" if to.keep else marker)

    def _leave_tag(self, old: State, new: State) -> None:
        if self._tags is None:
            return
        if new.role is Role.VALUE:
            self._tags.key("".join(self._head))
        elif (old.role is Role.VALUE and new.name != AFTER) or old.role is Role.AFTER:
            self._tags.close()
            self._after = []

    def _enter(self, new: State, marker: str) -> None:
        """Be in ``new``, by way of ``marker``."""
        if self._raw is None and not self._calls.is_open and new.role not in _PLAIN:
            self._raw = []
        self._note(marker)
        if new.role in (Role.NAME, Role.KEY):
            self._head, self._head_size = [], 0
        elif new.name == AFTER:
            self._after = [marker]
        elif new.role is Role.ARGS and self._reader is None and self._tags is None:
            assert new.style is not None
            assert not isinstance(new.style, Tags)
            self._reader = reader(new.style, self._calls, "")
        elif new.role is Role.REASONING and self._state.role is not Role.REASONING:
            self._prose.entered_reasoning()
        self._state = new

    # Calls.

    def _named(self, new: State, marker: str) -> bool:
        """A header is over. True where that has led to another state already."""
        head = self._table.spec.header("".join(self._head))
        self._head, self._head_size = [], 0
        if head.state:
            self._raw = None
            self._prose.divide(head.state)
            self._enter(self._table.states[head.state], marker)
            return True
        if isinstance(new.style, JsonCall | Python):
            return False  # names stand in the arguments
        if not head.name:
            if new.role in _PLAIN or new.role not in _OUTSIDE:
                self._degrade(marker)
                self._state = new if new.role is Role.CONTENT else self._state
                return True
            return False
        self._began()
        self._calls.open(head.name, head.id)
        style = new.style or self._table.spec.args.get(ARGS)
        if isinstance(style, Tags):
            self._tags = TagWriter(self._calls, head.name, style)
        elif style is not None:
            self._reader = reader(style, self._calls, head.name)
        return False

    def _began(self) -> None:
        """A call is sure: what was kept in case it was none is forgotten."""
        self._raw = None
        self._prose.call()

    def _close_call(self, whole: bool = False) -> None:
        if self._tags is not None:
            self._tags.end()
        elif self._reader is not None and not whole and not self._reader.end():
            self.truncated = True
        self._calls.close()
        self._reader = self._tags = None

    def _degrade(self, marker: str = "") -> None:
        """What looked like a call is none: it is content as it was written, with ``marker`` behind it."""
        raw, self._raw, self._reader = self._raw or [], None, None
        self._prose.content("".join(raw) + marker)
        self._state = self._table.states[RAW]

    def _note(self, text: str) -> None:
        if self._raw is not None:
            self._raw.append(text)

    def _header(self, text: str) -> int:
        text = text[: _HEAD - self._head_size]
        self._note(text)
        self._head.append(text)
        self._head_size += len(text)
        if text:
            return len(text)
        self._head = []
        if self._state.role is Role.NAME:
            self._degrade()
        else:
            self._break(self._table.states[ARGS])
        return 0

    def _break(self, state: State) -> None:
        """The arguments, in ``state``, cannot be read further: the call ends here."""
        self.truncated = True
        self._calls.close()
        self._reader = self._tags = None
        self._state = self._table.states[state.broken]

    def _arguments(self, text: str) -> int:
        if self._reader is None:
            return len(text)  # between tags
        state, count = self._state, self._calls.count
        used = self._reader.take(text)
        if self._calls.count > count:
            self._began()
        self._note(text[:used])
        if self._reader.broken:
            if self._raw is None:
                self._break(state)
            else:
                self._degrade()
        elif self._reader.done:
            if self._raw is not None:
                self._degrade()
            else:
                self._close_call(whole=True)
                self._state = self._table.states[BETWEEN]
        return used

    def _behind(self, text: str) -> int:
        """What stands behind what looks like a value's end."""
        if not text.isspace():
            self._reopen()
            return 0
        self._after.append(text)
        if sum(map(len, self._after)) > _SPACE:
            assert self._tags is not None
            self._tags.close()
            self._after = []
            self._state = self._table.states[ARGS]
        return len(text)

    def _reopen(self) -> None:
        """It was data."""
        assert self._tags is not None
        self._state = self._table.states[VALUE]
        for piece in self._after:
            self._tags.value(piece)
            self._last = piece[-1]
        self._after = []

    # The end.

    def _end(self, stopped: bool) -> None:
        role = self._state.role
        if role is Role.REASONING:
            self._prose.end_reasoning()
            self._prose.end()
            return
        if self._raw is not None:
            self._end_unnamed(stopped)
        if self._calls.is_open:
            self._end_call(stopped, role)
        elif not self._calls.count:
            self._prose.release()
        self._prose.end()

    def _end_unnamed(self, stopped: bool) -> None:
        """The answer ended before a call's name did."""
        state = self._state
        if self._table.spec.fused and self._raw and self._raw[0] in self._table.named:
            self._raw = None  # the header of a message that never came
            return
        ends = [self._table.states[to.state] for to in state.row.values()]
        closing = next((one for one in ends if one.role in _PLAIN), None)
        if stopped and state.role is Role.NAME and closing is not None and "".join(self._head).strip():
            self._named(closing, "")
            if self._calls.is_open:
                self._close_call()
        if self._raw is not None:
            self._degrade()

    def _end_call(self, stopped: bool, role: Role) -> None:
        if self._tags is not None:
            if stopped and role in (Role.VALUE, Role.AFTER):
                self._tags.close()
            if stopped and role in (Role.VALUE, Role.AFTER, Role.ARGS):
                self._close_call()
                return
        elif self._reader is not None and (stopped or self._reader.done) and self._reader.end():
            self._close_call(whole=True)
            return
        self.truncated = True
