"""`agents export`: adapters of a training run or of a team as plain PEFT folders. Merges and trains nothing."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from coterie.cli import options
from coterie.config import nearest
from coterie.errors import ConfigError, UserError
from coterie.pool import content_digest, split_model
from coterie.storage.runs import Run
from coterie.team import Team
from coterie.types import record

FILES = ("adapter_config.json", "adapter_model.safetensors")


@record
class ExportOptions:
    source: Path
    out: Path
    agents: tuple[str, ...]
    as_json: bool


@click.command("export")
@click.argument("source", metavar="RUN_OR_TEAM", type=click.Path(path_type=Path))
@click.option(
    "--out",
    "-o",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the adapters, one folder an agent.",
)
@click.option("--agent", "-a", "agents", multiple=True, metavar="NAME", help="Only this agent.")
@options.as_json
@options.bundle(ExportOptions)
def export(chosen: ExportOptions) -> None:
    """Write adapters as plain PEFT folders, which `peft` and servers with LoRA support load.

    RUN_OR_TEAM is a training run, whose newest checkpoint counts, or the recipe of a team. A folder that holds
    something else is left alone, and then nothing is written.
    """
    with _drafted(chosen) as (drafts, about):
        targets = {name: chosen.out / draft.name for name, draft in drafts.items()}
        fresh = {name: _is_new(drafts[name], target) for name, target in targets.items()}
        for name in (name for name, new in fresh.items() if new):
            _place(drafts[name], targets[name])
    rows = [{"name": name, "folder": str(targets[name]), "written": new} for name, new in fresh.items()]
    if chosen.as_json:
        options.print_json({"source": about, "agents": rows})
        return
    for row in rows:
        click.echo(f"{row['folder']}{'' if row['written'] else ': was there already'}")
    click.echo(f"of {about}; load one by peft.PeftModel.from_pretrained(base, folder)", err=True)


@contextmanager
def _drafted(chosen: ExportOptions) -> Iterator[tuple[dict[str, Path], str]]:
    """Every adapter in a folder beside its place, gone afterwards; and where they come from."""
    folder = chosen.out / ".export"
    shutil.rmtree(folder, ignore_errors=True)
    made = not chosen.out.exists()
    try:
        yield _drafts(chosen, folder)
    except OSError as error:
        raise UserError(f"{chosen.out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and chosen.out.is_dir() and not any(chosen.out.iterdir()):
            chosen.out.rmdir()


def _drafts(chosen: ExportOptions, folder: Path) -> tuple[dict[str, Path], str]:
    from coterie.learning.training import CHECKPOINTS, RECIPE, TEAM

    source = chosen.source
    if source.is_dir() and any((source / CHECKPOINTS).glob("round-*")):
        return _of_run(source, chosen.agents, folder)
    for recipe in (source / TEAM / RECIPE, source / RECIPE) if source.is_dir() else (source,):
        if recipe.is_file():
            return _of_team(recipe, chosen.agents, folder)
    raise ConfigError(f"{source}: is no training run with a checkpoint, no exported team and no recipe")


def _of_run(run: Path, wanted: Sequence[str], folder: Path) -> tuple[dict[str, Path], str]:
    """Drafts of the agents in the run's newest checkpoint."""
    import torch

    from coterie.learning import adapters
    from coterie.learning.checkpoint import newest
    from coterie.learning.training import CHECKPOINTS, folders_of, learner_of

    config = Run.load(run).config
    learner, agents = learner_of(config.get("recipe"), str(run)), config.get("agents")
    found = newest(run / CHECKPOINTS)
    if not isinstance(agents, Mapping) or found is None:
        raise ConfigError(f"{run}: is no run that trains adapters")
    names = _chosen(wanted, sorted(found.parts["run"][0]["agents"]), str(run))
    drafts = {name: folder / place for name, place in folders_of(names).items()}
    for name, draft in drafts.items():
        arrays = found.parts[f"agent.{name}"][1]
        weights = {
            key.removeprefix("weights/"): array for key, array in arrays.items() if key.startswith("weights/")
        }
        tensors = {key: torch.from_numpy(array) for key, array in weights.items()}
        adapters.write(draft, tensors, learner.lora, split_model(agents[name]["model"])[1])
    return drafts, f"{run}, round {found.round}"


def _of_team(recipe: Path, wanted: Sequence[str], folder: Path) -> tuple[dict[str, Path], str]:
    """Drafts of the adapters of a team's agents; those without one are left out unless they are asked for."""
    from coterie.learning.training import folders_of

    pool = Team.load(recipe).pool
    adapted = {name: Path(agent.adapter) for name, agent in pool.items() if agent.adapter}
    if (bare := next((name for name in wanted if name in pool and name not in adapted), None)) is not None:
        raise ConfigError(f"{recipe}: agent {bare!r} has no adapter")
    names = _chosen(wanted, sorted(adapted), str(recipe))
    drafts = {name: folder / place for name, place in folders_of(names).items()}
    for name, draft in drafts.items():
        draft.mkdir(parents=True)
        for file in FILES:
            if not (adapted[name] / file).is_file():
                raise ConfigError(f"{adapted[name]}: is no PEFT folder with safetensors, it has no {file}")
            shutil.copyfile(adapted[name] / file, draft / file)
    return drafts, str(recipe)


def _chosen(wanted: Sequence[str], known: Sequence[str], where: str) -> list[str]:
    for name in wanted:
        if name not in known:
            raise ConfigError(f"{where}: has no agent {name!r} with an adapter{nearest(name, known)}")
    found = [name for name in known if name in wanted or not wanted]
    if not found:
        raise ConfigError(f"{where}: none of its agents has an adapter")
    return found


def _is_new(draft: Path, target: Path) -> bool:
    """False where the very same adapter lies there. Raises: ConfigError where anything else does."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return True
    if target.is_dir() and content_digest(target) == content_digest(draft):
        return False
    raise ConfigError(f"{target}: holds something else and is left as it is; choose another --out or remove it")


def _place(draft: Path, target: Path) -> None:
    if target.exists():
        target.rmdir()  # it is empty
    draft.rename(target)
