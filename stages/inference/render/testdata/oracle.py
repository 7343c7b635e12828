"""Asks transformers and tokenizers for the tokens of the cases in the folder of the first argument.

in.json: {"corpus": [text], "texts": [text], "raw": n, "conversations": [{"format", "messages", "tools", "quiet", "grow"}]}; arguments
of tool calls are JSON texts, of the texts the first "raw" are raw prompts, too, and what stands before each answer is told of
the conversations that "grow". Tokenizers are trained on the corpus, with the
patterns, normalizers and added tokens of the published ones, and written as <tokenizer>.json. out.json has the answers in
order.
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def byte_level(regex, **options):
    tok = Tokenizer(models.BPE(**options))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    split = [] if regex is None else [pre_tokenizers.Split(Regex(regex), "isolated")]
    tok.pre_tokenizer = pre_tokenizers.Sequence(split + [level]) if split else level
    tok.decoder = decoders.ByteLevel()
    return tok


def train(tok, corpus, special, plain=()):
    tok.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=2500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    for text in special:
        tok.add_special_tokens([AddedToken(text, normalized=False, special=True)])
    for text in plain:
        tok.add_tokens([AddedToken(text, normalized=False, special=False)])
    return tok


def qwen(corpus):
    tok = byte_level(QWEN)
    tok.normalizer = normalizers.NFC()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tok, corpus, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>"],
                 ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])


def llama(corpus):
    tok = train(byte_level(LLAMA, ignore_merges=True), corpus, [
        "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"])
    begin = "<|begin_of_text|>"
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B:1", special_tokens=[(begin, tok.token_to_id(begin))])])
    return tok


def gpt2(corpus):
    tok = byte_level(None)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    # Found behind normalization, as in GPT-2's own file, and one token that begins as another ends.
    tok = train(tok, corpus, [])
    tok.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True), AddedToken("|>end|", normalized=False, special=True)])
    tok.add_tokens([AddedToken("ab", normalized=True), AddedToken("abc d", normalized=False), AddedToken("|>", normalized=False)])
    return tok


def encode(tok, texts, special):
    tok.encode_special_tokens = not special
    try:
        return [e.ids for e in tok.encode_batch_fast(texts, add_special_tokens=special)]
    finally:
        tok.encode_special_tokens = False


def message(m):
    for call in m.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return m


def main(folder):
    cases = json.loads((folder / "in.json").read_text())
    toks = {name: make(cases["corpus"]) for name, make in {"qwen": qwen, "llama": llama, "gpt2": gpt2}.items()}
    for name, tok in toks.items():
        tok.save(str(folder / f"{name}.json"))
    chat = {}
    for path in (pathlib.Path(__file__).parent / "templates").glob("*.jinja"):
        name = "llama" if path.stem.startswith("llama") else "qwen"
        chat[path.stem] = toks[name], PreTrainedTokenizerFast(
            tokenizer_file=str(folder / f"{name}.json"), bos_token="<|begin_of_text|>" if name == "llama" else None,
            chat_template=path.read_text())

    # Text with the generation prompt: of all, and before each answer, where that is wanted and the first only continues it.
    renders, texts = [], {"qwen": [], "llama": []}
    for c in cases["conversations"]:
        tok, template = chat[c["format"]]
        pile = texts["llama" if tok is toks["llama"] else "qwen"]
        messages = [message(m) for m in c["messages"]]
        options = dict(tools=c.get("tools"), date_string="26 Jul 2024", add_generation_prompt=True)
        if c.get("quiet"):
            options["enable_thinking"] = False
        first = len(pile)
        pile.append(template.apply_chat_template(messages, tokenize=False, **options))
        before = [template.apply_chat_template(messages[:i], tokenize=False, **options)
                  for i, m in enumerate(messages) if m["role"] == "assistant" and c.get("grow")]
        stable = bool(c.get("grow")) and all(pile[first].startswith(text) for text in before)
        pile.extend(before if stable else ())
        renders.append((pile, first, len(pile), stable))
        if len(renders) % 97 == 0:  # that the ids of the texts are those that users get
            assert template.apply_chat_template(messages, return_dict=False, **options) == tok.encode(pile[first], add_special_tokens=False).ids, c
    ids = {id(pile): [e.ids for e in toks[name].encode_batch_fast(pile, add_special_tokens=False)] for name, pile in texts.items()}

    def answer(pile, first, end, stable):
        """The ids, and how many stand before each answer; null where the template changes what stands."""
        whole, *before = ids[id(pile)][first:end]
        stable = stable and all(whole[:len(b)] == b for b in before)
        return whole, [len(b) for b in before] if stable else None

    def texts_of(tok):
        """The ids of each text as a message's, as a raw prompt, and what the latter decodes to."""
        raw = encode(tok, cases["texts"][:cases["raw"]], True)
        return encode(tok, cases["texts"], False), raw, tok.decode_batch(raw, skip_special_tokens=True)

    (folder / "out.json").write_text(json.dumps({
        "texts": {name: texts_of(tok) for name, tok in toks.items()}, "conversations": [answer(*r) for r in renders]}))


main(pathlib.Path(sys.argv[1]))
