"""Token ids and text: the ``tokenizers`` library behind one class; never transformers."""
