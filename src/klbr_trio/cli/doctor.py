"""`klbr doctor`: what this machine has for kernels, and whether the configured models are usable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import attrs
import trio

from klbr_trio.cli.exits import Exit, Problem
from klbr_trio.cli.models import model_choice
from klbr_trio.cli.serving import kernel_settings
from klbr_trio.cli.settings import here
from klbr_trio.daemon.kernels import kernels
from klbr_trio.models import Finding, ModelConfig, ModelsConfig, examine, public_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klbr_trio.cli.output import Output
    from klbr_trio.daemon.settings import ModelChoice
    from klbr_trio.kernel import WorkerConfig


def doctor(*, output: Output, flags: Mapping[str, object]) -> Exit:
    """Say what stands around kernels on this machine, and what each model's provider answers."""
    settings = here(flags)
    config = kernels(kernel_settings(settings))
    models = _models(model_choice(settings, os.environ))
    findings = trio.run(_examine_all, models)
    values = {**_kernel_values(config), "models": _model_values(models, findings)}
    output.fact(values, "\n".join([*_kernel_lines(config), *_model_lines(models, findings)]))
    if config.refusal is not None:
        raise Problem(Exit.CHECK_FAILED, config.refusal)
    failed = [each for found in findings for each in found if each.level == "fail"]
    if failed:
        raise Problem(Exit.CHECK_FAILED, f"{len(failed)} checks of the models failed, see above")
    return Exit.DONE


def _kernel_values(config: WorkerConfig) -> dict[str, object]:
    found = config.sandbox
    return {
        "sandbox": found.level.value,
        "reasons": list(found.reasons),
        "bwrap": None if found.bwrap is None else str(found.bwrap),
        "python": str(config.python),
        "least": config.least.value,
        "network": config.network.value,
        "refusal": config.refusal,
    }


def _kernel_lines(config: WorkerConfig) -> list[str]:
    found = config.sandbox
    return [
        f"sandbox  {found.level.value} (at least {config.least.value} is wanted)",
        *(f"         {reason}" for reason in found.reasons),
        f"network  {config.network.value}",
        f"python   {config.python}",
    ]


@attrs.frozen
class _Model:
    """A model that may be asked, under what it is called here."""

    name: str
    config: ModelConfig


def _models(choice: ModelChoice) -> tuple[_Model, ...]:
    """Every model once, the default first."""
    if not isinstance(choice, ModelsConfig):
        return ()
    found: list[_Model] = []
    for config in (choice.llm, *choice.fallbacks, *choice.named.values()):
        names = (name for name, named in choice.named.items() if named == config)
        if all(model.config != config for model in found):
            found.append(_Model(next(names, config.model), config))
    return tuple(found)


async def _examine_all(models: Sequence[_Model]) -> list[Sequence[Finding]]:
    """What is found out of each, asked side by side."""
    found: list[Sequence[Finding]] = [()] * len(models)

    async def one(place: int) -> None:
        found[place] = await examine(models[place].config)

    async with trio.open_nursery() as nursery:
        for place in range(len(models)):
            nursery.start_soon(one, place)
    return found


def _model_values(
    models: Sequence[_Model], findings: Sequence[Sequence[Finding]]
) -> list[dict[str, Any]]:
    return [
        {
            "name": model.name,
            "model": model.config.model,
            "url": public_url(model.config.url),
            "checks": [attrs.asdict(each) for each in found],
        }
        for model, found in zip(models, findings, strict=True)
    ]


def _model_lines(models: Sequence[_Model], findings: Sequence[Sequence[Finding]]) -> list[str]:
    if not models:
        return ["model    none: inputs are stored and nothing answers"]
    lines: list[str] = []
    for model, found in zip(models, findings, strict=True):
        lines.append(
            f"model    {model.name}: {model.config.model} at {public_url(model.config.url)}"
        )
        for each in found:
            fix = "" if each.level == "ok" or not each.fix else f". {each.fix}"
            lines.append(f"         {each.level:<5}{each.check:<8} {each.text.rstrip('.')}{fix}")
    return lines
