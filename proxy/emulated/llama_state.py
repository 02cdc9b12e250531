"""What llama-server tells of itself: /props, /slots, /metrics, /v1/models. Must not know how requests are run."""

import time
from typing import Any

from proxy.emulated.engine import SlotEngine
from proxy.emulated.jobs import Slot
from proxy.emulated.options import Options

BUILD = "b0-emulated"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]


def sampling(fields: dict[str, Any], *, full: bool, chat_format: str = "Content-only") -> dict[str, Any]:
    """The parameters of a request as /slots (short) and /completion (full) show them."""
    most = fields.get("most", -1)
    long_only: dict[str, Any] = {
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "stop": fields.get("stop", []),
        "logit_bias": [],
        "grammar": "",
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
    }
    values: dict[str, Any] = {
        "seed": fields.get("seed", 4294967295),
        "temperature": float(fields.get("temperature", 0.800000011920929)),
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": fields.get("top_k", 40),
        "top_p": float(fields.get("top_p", 0.949999988079071)),
        "min_p": float(fields.get("min_p", 0.05000000074505806)),
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.10000000149011612,
        "typical_p": 1.0,
        "repeat_last_n": 64,
        "repeat_penalty": float(fields.get("repeat_penalty", 1.0)),
        "presence_penalty": float(fields.get("presence_penalty", 0.0)),
        "frequency_penalty": float(fields.get("frequency_penalty", 0.0)),
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": None,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.10000000149011612,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.8999999761581421,
        "stop": None,
        "max_tokens": most,
        "n_predict": most,
        "n_keep": fields.get("n_keep", 0),
        "n_discard": 0,
        "ignore_eos": bool(fields.get("ignore_eos", False)),
        "stream": bool(fields.get("stream", False)),
        "logit_bias": None,
        "n_probs": 0,
        "min_keep": 0,
        "grammar": None,
        "grammar_lazy": None,
        "grammar_triggers": None,
        "preserved_tokens": None,
        "chat_format": chat_format,
        "reasoning_format": fields.get("reasoning_format", "deepseek"),
        "reasoning_in_content": False,
        "generation_prompt": "" if chat_format == "Content-only" else "<|im_start|>assistant\n",
        "samplers": _SAMPLERS,
        "speculative.types": "none",
        "timings_per_token": bool(fields.get("timings_per_token", False)),
        "post_sampling_probs": False,
        "backend_sampling": False,
        "lora": [],
    }
    if full:
        return values | long_only
    return {name: value for name, value in values.items() if name not in long_only}


def props(options: Options, engine: SlotEngine, media_marker: str) -> dict[str, Any]:
    """The answer of /props."""
    model = options.models[0]
    tools = "tools" in model.capabilities
    return {
        "default_generation_settings": {
            "params": sampling({"reasoning_format": "none"}, full=False),
            "n_ctx": engine.context,
        },
        "total_slots": len(engine.slots),
        "model_alias": model.name,
        "model_ftype": model.quantization,
        "model_path": f"/emulated/{model.name}.gguf",
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": media_marker,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": options.metrics,
        "ui": True,
        "ui_settings": {},
        "chat_template": CHAT_TEMPLATE,
        "chat_template_caps": {
            "supports_object_arguments": tools,
            "supports_parallel_tool_calls": tools,
            "supports_preserve_reasoning": False,
            "supports_reasoning_effort": False,
            "supports_string_content": True,
            "supports_system_role": True,
            "supports_tool_calls": tools,
            "supports_tools": tools,
            "supports_typed_content": False,
        },
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "build_info": BUILD,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }


def slot_view(slot: Slot, engine: SlotEngine) -> dict[str, Any]:
    """One element of /slots; a slot that was never used shows little."""
    view: dict[str, Any] = {"id": slot.id, "n_ctx": engine.context, "speculative": False, "is_processing": slot.busy}
    if slot.task_id is None:
        return view
    job = engine.job_of(slot)
    left = -1 if job is None or job.most < 0 else job.most - job.decoded
    return view | {
        "id_task": slot.task_id,
        "n_prompt_tokens": job.held if job else len(slot.tokens),
        "n_prompt_tokens_processed": job.processed if job else 0,
        "n_prompt_tokens_cache": job.cached if job else 0,
        "params": sampling(slot.params, full=False, chat_format=slot.params.get("chat_format", "Content-only")),
        "next_token": [
            {
                "has_next_token": job is not None,
                "has_new_line": False,
                "n_remain": left,
                "n_decoded": job.decoded if job else 0,
            }
        ],
    }


def metrics(engine: SlotEngine, since: dict[str, float], *, deferred: int | None = None) -> str:
    """The answer of /metrics. The two rates are of the time since the last scrape, which `since` remembers.

    `deferred` is what is told of waiting jobs; None: as many as there are.
    """
    count = engine.counters
    prompt_rate = _rate(count.prompt_tokens, count.prompt_s, since, "prompt")
    output_rate = _rate(count.output_tokens, count.output_s, since, "output")
    waiting = len(engine.deferred) if deferred is None else deferred
    busy = count.busy_slot_steps / count.steps if count.steps else 0
    rows: list[tuple[str, str, str, float]] = [
        (
            "counter",
            "prompt_tokens_total",
            "Number of prompt tokens processed, excluding cached tokens",
            count.prompt_tokens,
        ),
        ("counter", "prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", count.cached_tokens),
        ("counter", "prompt_seconds_total", "Total time spent processing prompts", count.prompt_s),
        ("counter", "tokens_predicted_total", "Number of generation tokens processed", count.output_tokens),
        ("counter", "tokens_predicted_seconds_total", "Total time spent generating tokens", count.output_s),
        (
            "counter",
            "n_decode_total",
            "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding",
            count.steps,
        ),
        ("counter", "n_tokens_max", "Largest observed sequence length (prompt + generation)", count.longest),
        (
            "counter",
            "spec_decode_num_draft_tokens_total",
            "Speculative: Total draft tokens generated",
            0,
        ),
        (
            "counter",
            "spec_decode_num_accepted_tokens_total",
            "Speculative: Total draft tokens accepted by the target model",
            0,
        ),
        ("counter", "spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", 0),
        ("gauge", "prompt_tokens_seconds", "Average prompt throughput in tokens/s", prompt_rate),
        ("gauge", "predicted_tokens_seconds", "Average generation throughput in tokens/s", output_rate),
        ("gauge", "requests_processing", "Number of requests processing", len(engine.running)),
        ("gauge", "requests_deferred", "Number of requests deferred", waiting),
        ("gauge", "n_busy_slots_per_decode", "Average number of busy slots per llama_decode() call", busy),
    ]
    return "".join(
        f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {_number(value)}\n"
        for kind, name, text, value in rows
    )


def _number(value: float) -> float:
    """As C++ prints it: without a fraction that is nothing."""
    return int(value) if value == int(value) else round(value, 6)


def _rate(tokens: float, seconds: float, since: dict[str, float], name: str) -> float:
    new_tokens = tokens - since.get(f"{name} tokens", 0.0)
    new_seconds = seconds - since.get(f"{name} seconds", 0.0)
    since[f"{name} tokens"], since[f"{name} seconds"] = tokens, seconds
    return new_tokens / new_seconds if new_seconds > 0 else 0.0


def model_list(options: Options, engine: SlotEngine) -> dict[str, Any]:
    """The answer of /v1/models: one model, in Ollama's words and in OpenAI's."""
    model = options.models[0]
    return {
        "models": [
            {
                "name": model.name,
                "model": model.name,
                "modified_at": "",
                "size": "",
                "digest": "",
                "type": "model",
                "description": "",
                "tags": [""],
                "capabilities": ["completion"],
                "parameters": "",
                "details": {
                    "parent_model": "",
                    "format": "gguf",
                    "family": "",
                    "families": [""],
                    "parameter_size": "",
                    "quantization_level": "",
                },
            }
        ],
        "object": "list",
        "data": [
            {
                "id": model.name,
                "aliases": [model.name],
                "tags": [],
                "object": "model",
                "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
                "created": int(time.time()),
                "owned_by": "llamacpp",
                "meta": {
                    "vocab_type": 2,
                    "n_vocab": 49152,
                    "n_ctx": engine.context,
                    "n_ctx_train": model.train_context,
                    "n_embd": model.embedding_length,
                    "n_params": model.parameters,
                    "size": model.size_bytes,
                    "ftype": model.quantization,
                },
            }
        ],
    }
