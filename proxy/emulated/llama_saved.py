"""Saving, restoring and erasing slots through files, as llama-server does. Must not know routes or heads."""

import asyncio
from pathlib import Path
from typing import Any

import orjson

from proxy.emulated.engine import SlotEngine
from proxy.emulated.jobs import Problem, Slot
from proxy.emulated.llama_requests import Refused, refuse
from proxy.emulated.options import Options

_BYTES_PER_TOKEN = 131_072
"""KV of an 8B model in f16."""


class SavedSlots:
    """Slots as files in one directory, which several emulated engines may share."""

    def __init__(self, options: Options, engine: SlotEngine) -> None:
        self._options, self._engine = options, engine

    async def act(self, slot_text: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """Save, restore or erase; waits until the slot is idle.

        Raises:
            Refused: saving is off, the action, the id or the file name is wrong, or the file does not fit.
        """
        if not self._options.save_path:
            message = "This server does not support slots action. Start it with `--slot-save-path`"
            raise Refused(Problem(501, "not_supported_error", message))
        if not slot_text.isdigit():
            raise refuse("Invalid slot ID")
        number = int(slot_text)
        slot = self._engine.slots[number % len(self._engine.slots)]
        if action not in {"save", "restore", "erase"}:
            raise refuse("Invalid action")
        path = Path() if action == "erase" else self._file(body.get("filename"))
        while slot.busy:  # noqa: ASYNC110 - rare, and the engine need not know who waits
            await asyncio.sleep(0.001)
        if action == "erase":
            erased = len(slot.tokens)
            slot.hold([])
            return {"id_slot": number, "n_erased": erased}
        if action == "save":
            return await self._save(number, slot, path)
        return await self._restore(number, slot, path)

    def _file(self, name: Any) -> Path:
        if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
            raise refuse("Invalid filename")
        return Path(self._options.save_path) / name

    async def _save(self, number: int, slot: Slot, path: Path) -> dict[str, Any]:
        # A slot that does not exist saves nothing, with 200: the real engine does not check the id.
        tokens = list(slot.tokens) if number < len(self._engine.slots) else []
        took = self._options.card.save_ms * len(tokens)
        self._engine.stall(took)
        content = orjson.dumps({"slots": len(self._engine.slots), "tokens": tokens})
        await asyncio.to_thread(path.write_bytes, content)
        written = len(tokens) * _BYTES_PER_TOKEN + 40
        return {
            "id_slot": number,
            "filename": path.name,
            "n_saved": len(tokens),
            "n_written": written,
            "timings": {"save_ms": round(took, 3)},
        }

    async def _restore(self, number: int, slot: Slot, path: Path) -> dict[str, Any]:
        try:
            content = orjson.loads(await asyncio.to_thread(path.read_bytes))
            # With a cache split per slot, a file fits only an engine with as many slots.
            fits = content["slots"] == len(self._engine.slots) and len(content["tokens"]) < self._engine.context
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
            fits = False
        if not fits:
            slot.hold([])
            raise refuse("Unable to restore slot: No available space in KV cache or invalid slot save file")
        slot.hold(content["tokens"])
        slot.task_id = -1 if slot.task_id is None else slot.task_id
        took = self._options.card.restore_ms * len(slot.tokens)
        self._engine.stall(took)
        return {
            "id_slot": number,
            "filename": path.name,
            "n_restored": len(slot.tokens),
            "n_read": len(slot.tokens) * _BYTES_PER_TOKEN + 40,
            "timings": {"restore_ms": round(took, 3)},
        }
