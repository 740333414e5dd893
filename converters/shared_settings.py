"""Settings that every Hugging Face config.json may carry, whatever its family.

They come from the base class of all configurations, which older versions of transformers wrote out in full, defaults and
nulls included, together with the settings of text generation. Null is accepted for each of them.
"""

from __future__ import annotations

from typing import Any

# How a model is named, stored, trained or run: no value changes what it computes.
_STORAGE = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation _experts_implementation_internal _flash_attn_2_enabled _from_model_config _name_or_path
    architectures attention_dropout attention_probs_dropout_prob attn_implementation attribute_map auto_map
    chunk_size_feed_forward cross_attention_hidden_size dtype experts_implementation finetuning_task
    gradient_checkpointing hidden_dropout_prob id2label initializer_range is_decoder is_llama_config label2id loss_type
    model_type num_labels output_attentions output_hidden_states output_past prefix pretraining_tp problem_type
    return_dict sep_token_id task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers.js_config transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache xla_device
"""
# How transformers' `generate` samples; here that is a sampler's business.
_GENERATION = """
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind bad_words_ids
    begin_suppress_tokens cache_config cache_implementation compile_config constraints continuous_batching_config
    decoder_start_token_id disable_compile diversity_penalty do_sample dola_layers early_stopping
    encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty
    force_words_ids forced_bos_token_id forced_decoder_ids forced_eos_token_id generation_kwargs guidance_scale
    is_assistant length_penalty low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens max_time
    min_length min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
    num_beam_groups num_beams num_return_sequences output_logits output_scores penalty_alpha prefill_chunk_size
    prompt_lookup_num_tokens remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate
    return_legacy_cache sequence_bias speculation_type stop_strings suppress_tokens target_lookbehind temperature
    token_healing top_h top_k top_p typical_p use_mtp watermarking_config
"""
HARMLESS = frozenset((_STORAGE + _GENERATION).split())
# These would change the computation; their defaults do not.
DEFAULTS: dict[str, Any] = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "tie_encoder_decoder": False,
}
