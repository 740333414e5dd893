"""Our chat templates say the same as the Jinja each model publishes (without the tool-calling branches)."""

import jinja2
import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.text import chat

_HEADERS = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
)
_LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
_QWEN25 = r"""{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
_QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning_content = reasoning_content.split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') }}
            {{- '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
# Ling 2.0's, whose layout LLaDA-MoE and LLaDA2 have; theirs was not to be had.
_LING = r"""{% set thinking_option = 'off' %}
{{- '<role>SYSTEM</role>' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content + '\n' }}
{%- endif %}
{{- 'detailed thinking ' + thinking_option + '<|role_end|>' }}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "user" %}
        {{- '<role>HUMAN</role>' + message.content + '<|role_end|>' }}
    {%- elif message.role == "system" and not loop.first %}
        {{- '<role>SYSTEM</role>' + message.content + '<|role_end|>' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<role>ASSISTANT</role>' + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
            {{- content.lstrip('\n') }}
        {%- else %}
            {{- '<role>ASSISTANT</role>' + content }}
        {%- endif %}
        {{- '<|role_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<role>ASSISTANT</role>' }}
{%- endif %}
"""
# Nemotron 3's, with the default of Nemotron-Labs-Diffusion: no thinking.
_NEMOTRON = r"""{%- set enable_thinking = enable_thinking if enable_thinking is defined else False %}
{%- set truncate_history_thinking = truncate_history_thinking if truncate_history_thinking is defined else True %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(last_user_idx = -1) %}
{%- for m in loop_messages %}
  {%- if m["role"] == "user" %}
    {%- set ns.last_user_idx = loop.index0 %}
  {%- endif %}
{%- endfor %}
{{- "<|im_start|>system\n" + system_message }}
{{- '<|im_end|>\n' }}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content | default('', true) %}
        {%- if '<think>' not in content and '</think>' not in content -%}
            {%- set content = "<think></think>" ~ content -%}
        {%- endif -%}
        {%- if not (truncate_history_thinking and loop.index0 < ns.last_user_idx) %}
            {{- '<|im_start|>assistant\n' ~ (content | trim) ~ '<|im_end|>\n' }}
        {%- else %}
            {%- set c = content %}
            {%- if '<think>' in c and '</think>' in c %}
                {%- set c = "<think></think>" ~ c.split('</think>')[-1] %}
            {%- endif %}
            {{- '<|im_start|>assistant\n' ~ (c | trim) ~ '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {{- message.content }}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {%- if enable_thinking %}
        {{- '<|im_start|>assistant\n<think>\n' }}
    {%- else %}
        {{- '<|im_start|>assistant\n<think></think>' }}
    {%- endif %}
{%- endif %}
"""
_SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MISTRAL = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""
_LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_LLADA = _HEADERS + "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
PUBLISHED = {
    "llada": (_LLADA, "<|startoftext|>"),
    "mmada": (_LLADA.replace("\n\n", "\n"), "<|startoftext|>"),
    "dream": (_QWEN25.replace("You are Qwen, created by Alibaba Cloud. ", ""), ""),
    "llama3": (
        _HEADERS + "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        "<|begin_of_text|>",
    ),
    "llama3.1": (_LLAMA31, "<|begin_of_text|>"),
    "llada2": (_LING, ""),
    "llama2": (_LLAMA2, "<s>"),
    "qwen2.5": (_QWEN25, ""),
    "qwen2": (_SMOLLM2.replace(" AI assistant named SmolLM, trained by Hugging Face", " assistant."), ""),
    "qwen3": (_QWEN3, ""),
    "smollm2": (_SMOLLM2, ""),
    "mistral": (_MISTRAL, "<s>"),
    "nemotron": (_NEMOTRON, ""),
}


def _turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """User and assistant messages in turn, after an optional system message."""
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


CONVERSATIONS = {
    "single": _turns("What is 2 + 2?"),
    "white space and braces": _turns("  {content} {role} {{ x }} \n"),
    "system": _turns("hi", system=" Be brief.\n"),
    "empty system": _turns("hi", system=""),
    "turns": _turns("a ", " b\n", "c"),
    "system and turns": _turns("a", "b", " c", "d ", "e", system="s"),
    "thoughts": _turns("a", "<think>\nhm\n</think>\n\nb", "c"),
}


def _jinja(name: str, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    text, bos = PUBLISHED[name]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers sets it
    return environment.from_string(text).render(
        messages=messages, add_generation_prompt=add_generation_prompt, bos_token=bos, eos_token="</s>"
    )


def test_every_template_has_its_published_text():
    assert set(PUBLISHED) == set(chat.TEMPLATES)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_same_as_published(name, conversation):
    messages = CONVERSATIONS[conversation]
    assert chat.render(messages, name) == _jinja(name, messages, True)
    if name not in ("llada", "mmada"):  # their Jinja always opens the answer
        assert chat.render(messages, name, add_generation_prompt=False) == _jinja(name, messages, False)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3.1", "smollm2", "llama2", "llada2", "nemotron"])
@pytest.mark.parametrize("answer", ["b", "<think>\nhm\n</think>\n\nb"])
def test_closing_answer_same_as_published(name, answer):
    messages = _turns("a", answer)
    assert chat.render(messages, name, add_generation_prompt=False) == _jinja(name, messages, False)


def test_llada_and_mmada_by_hand():
    user = "<|startoftext|><|start_header_id|>user<|end_header_id|>"
    answer = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
    assert chat.render("hi", "llada") == f"{user}\n\nhi{answer}\n\n"
    assert chat.render("hi", "mmada") == f"{user}\nhi{answer}\n"
    assert chat.render("hi", "llada", add_generation_prompt=False) == f"{user}\n\nhi<|eot_id|>"


def test_llada2_and_nemotron_by_hand():
    """What inclusionAI's dInfer and NVIDIA's TensorRT runtime write around one question."""
    off = "detailed thinking off<|role_end|>"
    asked = "<role>HUMAN</role>hi<|role_end|><role>ASSISTANT</role>"
    assert chat.render("hi", "llada2") == f"<role>SYSTEM</role>{off}{asked}"
    assert chat.render(_turns("hi", system="s"), "llada2") == f"<role>SYSTEM</role>s\n{off}{asked}"
    empty, user = "<|im_start|>system\n<|im_end|>\n", "<|im_start|>user\nhi<|im_end|>\n"
    assert chat.render("hi", "nemotron") == f"{empty}{user}<|im_start|>assistant\n<think></think>"


@pytest.mark.parametrize("name", ["qwen3", "llada2", "nemotron"])
@pytest.mark.parametrize(
    "contents", [("a", "<think>\nhm\n</think>\n\nb", "c", "d"), ("a", "</think> b"), ("a", "<think>b"), ("a", "", "c")]
)
def test_thoughts_same_as_published(name, contents):
    for messages in (_turns(*contents), _turns(*contents, system="s"), _turns(*contents)[1:]):
        assert chat.render(messages, name) == _jinja(name, messages, True)


def test_later_system_message_stays_in_place():
    messages = [*_turns("a"), {"role": "system", "content": "s"}, *_turns("b")]
    for name in ("qwen2.5", "llama3.1", "llada2", "nemotron"):
        assert chat.render(messages, name) == _jinja(name, messages, True)
    with pytest.raises(JaxsinkError, match="in turn"):
        chat.render(messages, "llama2")


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "empty"),
        ([{"role": "tool", "content": "x"}], "role 'tool'"),
        ([{"role": "user"}], "message 0 must be a mapping"),
        ([{"role": "user", "content": ["x"]}], "must be text, got list"),
        (["hi"], "message 0 must be a mapping"),
    ],
)
def test_bad_messages(messages, complaint):
    with pytest.raises(JaxsinkError, match=complaint):
        chat.render(messages, "qwen2.5")


def test_inst_styles_need_turns():
    with pytest.raises(JaxsinkError, match="in turn"):
        chat.render([*_turns("a"), *_turns("b")], "mistral")
    with pytest.raises(JaxsinkError, match="in turn"):
        chat.render([{"role": "system", "content": "alone"}], "llama2")


def test_unknown_template_lists_names():
    with pytest.raises(JaxsinkError, match=r"'gpt5'; choose one of dream, llada, llada2, llama2"):
        chat.render("hi", "gpt5")


@pytest.mark.parametrize("name", PUBLISHED)
def test_recognised_by_published_text(name):
    form = chat.TEMPLATES[name]
    known = {*form.tokens, *form.markers}
    assert chat.recognise(known.__contains__, PUBLISHED[name][0]) == name


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"llama2"}))
def test_recognised_by_vocabulary(name):
    form = chat.TEMPLATES[name]
    known = {*form.tokens, *form.markers}
    assert chat.recognise(known.__contains__) == name


def test_recognise_is_careful():
    llada = {*chat.TEMPLATES["llada"].tokens, "<|mdm_mask|>"}
    assert chat.recognise(llada.__contains__, _LLADA, family="MMaDA") == "mmada"  # published with LLaDA's own text
    assert chat.recognise(llada.__contains__, "{{ messages }}") is None  # a template we do not know
    assert chat.recognise({"<|mdm_mask|>"}.__contains__, None, family="llada") is None  # a base model without headers
    assert chat.recognise(set().__contains__) is None
    nemotron = {*chat.TEMPLATES["nemotron"].tokens, *chat.TEMPLATES["nemotron"].markers}
    thinks = _NEMOTRON.replace("else False", "else True")  # Nemotron 3 itself thinks if nobody says otherwise
    assert chat.recognise(nemotron.__contains__, thinks) is None
    assert chat.recognise({"<|role_end|>", "<|mask|>"}.__contains__, _LING.replace("HUMAN", "user")) is None
