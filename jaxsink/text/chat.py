"""Chat templates as data: the text a conversation becomes for each known model.

Checkpoints carry their template as a Jinja program. Running a program that came with a checkpoint is not acceptable
here, and only a handful of layouts exist, so each is written down as plain strings and checked in the tests against the
Jinja its model publishes. Tool calls are not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxsink.errors import JaxsinkError
from jaxsink.text.thoughts import Rule, apply_rule

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class ChatTemplate:
    """Layout of one model's conversations.

    ``message`` has the places ``{role}`` and ``{content}``; ``system_form`` and ``assistant`` have ``{content}``.
    """

    name: str
    begin: str  # written once, before the first message
    message: str  # one message
    generation: str  # opens the answer
    roles: tuple[str, ...] = ROLES  # what the layout calls system, user and assistant
    default_system: str | None = None  # what the system message says when there is none, as it stands; None: nothing
    system_form: str = "{content}"  # what surrounds a leading system text (Llama 3.1's dates, Llama 2's <<SYS>>)
    system_in: str = "message"  # "message": its own message; "first" / "last": inside that user message
    assistant: str | None = None  # an assistant message, where it differs from `message`
    strip: tuple[str, ...] = ()  # roles whose content loses white space at both ends
    thoughts: Rule = "keep"  # what becomes of the <think> parts of answers
    tokens: tuple[str, ...] = ()  # pieces of the layout that must be single tokens
    markers: tuple[str, ...] = ()  # further tokens by which a vocabulary betrays this template
    hallmarks: tuple[str, ...] = ()  # pieces that occur, all of them, in the published Jinja text


_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
_HEADER = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_JINJA_HEADER = "set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>"
_LLADA = ChatTemplate(
    name="llada",
    begin="<|startoftext|>",
    message="<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
    generation="<|start_header_id|>assistant<|end_header_id|>\n\n",
    strip=ROLES,
    tokens=("<|startoftext|>", *_HEADER),
    markers=("<|mdm_mask|>",),
    hallmarks=(_JINJA_HEADER + "\n\n'+ message['content'] | trim + '<|eot_id|>'",),
)
_LLAMA3 = replace(
    _LLADA,
    name="llama3",
    begin="<|begin_of_text|>",
    tokens=("<|begin_of_text|>", *_HEADER),
    markers=(),
)
_QWEN2 = ChatTemplate(
    name="qwen2",
    begin="",
    message="<|im_start|>{role}\n{content}<|im_end|>\n",
    generation="<|im_start|>assistant\n",
    default_system="You are a helpful assistant.",
    tokens=("<|im_start|>", "<|im_end|>"),
    hallmarks=("<|im_start|>system\nYou are a helpful assistant.<|im_end|>",),
)
_SMOL = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_ALIBABA = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

# The order matters to `recognise`: the first template that fits wins, so the more particular ones come first.
_ALL = (
    replace(
        _LLADA,
        name="mmada",
        message="<|start_header_id|>{role}<|end_header_id|>\n{content}<|eot_id|>",
        generation="<|start_header_id|>assistant<|end_header_id|>\n",
        markers=("<|mdm_mask|>", "<|soi|>"),
        hallmarks=(_JINJA_HEADER + "\n'+ message['content'] | trim + '<|eot_id|>'",),
    ),
    _LLADA,
    replace(_QWEN2, name="dream", markers=("<|beginoftext|>", "<|mask|>")),
    replace(
        _LLAMA3,
        name="llama3.1",
        default_system=_DATES,
        system_form=_DATES + "{content}",
        markers=("<|eom_id|>", "<|python_tag|>"),
        hallmarks=("Cutting Knowledge Date: December 2023", "26 Jul 2024", "<|start_header_id|>"),
    ),
    _LLAMA3,
    replace(
        _QWEN2,
        name="smollm2",
        default_system=_SMOL,
        markers=("<repo_name>", "<empty_output>"),
        hallmarks=(f"<|im_start|>system\n{_SMOL}<|im_end|>",),
    ),
    ChatTemplate(
        name="llada2",  # LLaDA-MoE, LLaDA2.0 and 2.1; of the vocabulary only these two tokens are certain
        begin="",
        message="<role>{role}</role>{content}<|role_end|>",
        generation="<role>ASSISTANT</role>",
        roles=("SYSTEM", "HUMAN", "ASSISTANT"),
        default_system="detailed thinking off",
        system_form="{content}\ndetailed thinking off",
        thoughts="ling",
        tokens=("<|role_end|>",),
        markers=("<|mask|>",),
        hallmarks=("<role>HUMAN</role>", "<role>ASSISTANT</role>", "<|role_end|>", "thinking_option = 'off'"),
    ),
    replace(
        _QWEN2,
        name="nemotron",  # Nemotron-Labs-Diffusion, with its own default: no thinking
        generation="<|im_start|>assistant\n<think></think>",
        default_system="",
        thoughts="nemotron",
        strip=("assistant",),
        markers=("<think>", "</think>", "<SPECIAL_100>"),
        hallmarks=(
            "<|im_start|>",
            "truncate_history_thinking",
            "enable_thinking if enable_thinking is defined else False",
        ),
    ),
    replace(
        _QWEN2,
        name="qwen3",
        default_system=None,
        thoughts="qwen3",
        markers=("<think>", "</think>"),
        hallmarks=("'<|im_start|>system\n' + messages[0].content + '<|im_end|>\n'", "ns.last_query_index"),
    ),
    replace(
        _QWEN2,
        name="qwen2.5",
        default_system=_ALIBABA,
        markers=("<|fim_prefix|>", "<|object_ref_start|>"),
        hallmarks=(f"<|im_start|>system\n{_ALIBABA}<|im_end|>",),
    ),
    replace(_QWEN2, markers=("<|endoftext|>",)),
    ChatTemplate(
        name="mistral",  # Mistral-7B-Instruct-v0.3; v0.1 and v0.2 space the brackets differently
        begin="<s>",
        message="[INST] {content}[/INST]",
        generation="",
        assistant=" {content}</s>",
        system_form="{content}\n\n",
        system_in="last",
        strip=("assistant",),
        tokens=("<s>", "</s>", "[INST]", "[/INST]"),
        markers=("[TOOL_CALLS]",),
        hallmarks=('"[INST] " + message["content"] + "[/INST]"', "loop.last and system_message"),
    ),
    ChatTemplate(
        name="llama2",
        begin="",
        message="<s>[INST] {content} [/INST]",
        generation="",
        assistant=" {content} </s>",
        system_form="<<SYS>>\n{content}\n<</SYS>>\n\n",
        system_in="first",
        strip=("user", "assistant"),
        tokens=("<s>", "</s>"),
        markers=("<<SYS>>",),  # never a token: only the Jinja text or a name leads here
        hallmarks=("<<SYS>>\n", "'[INST] ' + content.strip() + ' [/INST]'"),
    ),
)
TEMPLATES: dict[str, ChatTemplate] = {form.name: form for form in _ALL}


def get(template: str | ChatTemplate) -> ChatTemplate:
    """The template of that name; a `ChatTemplate` is returned as it is."""
    if isinstance(template, ChatTemplate):
        return template
    if template not in TEMPLATES:
        raise JaxsinkError(f"unknown chat template {template!r}; choose one of {', '.join(sorted(TEMPLATES))}.")
    return TEMPLATES[template]


def recognise(has: Callable[[str], bool], jinja: str | None = None, family: str | None = None) -> str | None:
    """Name of the template of a tokenizer, or None when none is certain enough.

    ``has(text)`` says whether ``text`` is a single token. Three diffusion families name their template outright.
    Then the checkpoint's Jinja text decides by its hallmarks; text that fits none means a template we do not know, so
    the vocabulary's marker tokens alone decide only when there is no such text.
    """
    usable = [form for form in _ALL if all(map(has, form.tokens))]
    if family is not None and family.lower() in ("llada", "mmada", "dream"):
        return next((form.name for form in usable if form.name == family.lower()), None)
    if jinja:
        text = jinja.replace("\\n", "\n")  # a line break in a Jinja string is written either way
        fits = [form for form in usable if all(mark in text for mark in form.hallmarks)]
        marked = [form for form in fits if all(map(has, form.markers))]  # Dream's text is Qwen2's
        return (marked[0] if marked else fits[-1]).name if fits else None
    return next((form.name for form in usable if all(map(has, form.markers))), None)


def render(
    messages: str | Sequence[Mapping[str, str]],
    template: str | ChatTemplate,
    add_generation_prompt: bool = True,
) -> str:
    """The text of a conversation, ending where the answer starts.

    messages: a list of ``{"role": "system" | "user" | "assistant", "content": text}``; a plain string is one user
    message. Contents are taken as they are: a special token spelled out in one becomes that token, as elsewhere.
    Without ``add_generation_prompt`` the text ends after the last message (LLaDA's own Jinja has no such switch).
    """
    form = get(template)
    turns = _checked(messages, form)
    leading = turns[0][0] == "system"
    if leading:
        text = turns[0][1].strip() if "system" in form.strip else turns[0][1]
        turns[0] = ("system", form.system_form.replace("{content}", text))
        if form.system_in != "message":
            turns = _fold(turns, form)
            leading = False
    elif form.default_system is not None:
        turns.insert(0, ("system", form.default_system))
        leading = True
    turns = apply_rule(form.thoughts, turns)
    called: dict[str, str] = dict(zip(ROLES, form.roles, strict=True))
    out = [form.begin]
    for index, (role, content) in enumerate(turns):
        if role in form.strip and not (leading and index == 0):  # the leading one is stripped inside its form
            content = content.strip()
        layout = form.assistant if role == "assistant" and form.assistant is not None else form.message
        before, after = layout.replace("{role}", called[role]).split("{content}")
        out += [before, content, after]
    return "".join(out) + (form.generation if add_generation_prompt else "")


def _checked(messages: str | Sequence[Mapping[str, str]], form: ChatTemplate) -> list[tuple[str, str]]:
    """The conversation as (role, content) pairs, or one sentence about the first thing wrong with it."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    turns = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise JaxsinkError(f'message {index} must be a mapping {{"role": ..., "content": ...}}, got {message!r}.')
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise JaxsinkError(f"message {index} has the role {role!r}; use one of {', '.join(ROLES)}.")
        if not isinstance(content, str):
            raise JaxsinkError(f"the content of message {index} must be text, got {type(content).__name__}.")
        turns.append((role, content))
    if not turns:
        raise JaxsinkError("the conversation is empty; give at least one message.")
    if form.system_in != "message":
        roles = [role for role, _ in turns][turns[0][0] == "system" :]
        if not roles or any(role != ("user", "assistant")[i % 2] for i, role in enumerate(roles)):
            raise JaxsinkError(
                f"chat template {form.name!r} needs user and assistant messages in turn, the user first, after at most "
                f"one system message; got the roles {', '.join(role for role, _ in turns)}."
            )
    return turns


def _fold(turns: list[tuple[str, str]], form: ChatTemplate) -> list[tuple[str, str]]:
    """Move the leading system text into the first or the last user message."""
    (_, system), rest = turns[0], turns[1:]
    users = [index for index, (role, _) in enumerate(rest) if role == "user"]
    index = users[0] if form.system_in == "first" else users[-1]
    return [*rest[:index], ("user", system + rest[index][1]), *rest[index + 1 :]]
