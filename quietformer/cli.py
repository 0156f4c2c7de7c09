"""The ``quietformer`` command: registers one file per command and turns errors into exit codes.

0 done · 1 a gate failed · 2 the user's input or this machine is at fault, told in one or two lines · 130 interrupted.
Nothing heavy is imported here or at the top of a command's file: ``quietformer --help`` stays below 0.3 s.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from quietformer.commands import (
    adopt,
    bench,
    build,
    cache,
    calibrate,
    compare,
    data,
    demo,
    doctor,
    explain,
    export,
    gpu_check,
    inspect,
    lint,
    load,
    quantize,
    retrofit,
    run,
    serve,
    train,
    triton_check,
    triton_repo,
)
from quietformer.extras import describe_import_error
from quietformer.gate import GateFailedError


class _Commands(TyperGroup):
    """The group of all commands; every expected error of one ends here."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except GateFailedError as error:
            typer.echo(f"gate failed: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from error
        except BrokenPipeError:
            raise
        except (ValueError, OSError, ImportError) as error:
            if ctx.params["debug"]:
                raise
            message = describe_import_error(error) if isinstance(error, ImportError) else str(error)
            typer.echo(f"error: {message}", err=True)
            raise typer.Exit(2) from error


# Plain help texts: rich would add 0.1 s to every --help.
app = typer.Typer(
    name="quietformer",
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def quietformer(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (before the command).")
    ] = False,
) -> None:
    """Transformers that survive static per-tensor INT8: retrofit, export, calibrate, quantize, measure.

    Start with 'quietformer doctor', then 'quietformer demo'.
    """


for _module in (
    demo,
    run,
    retrofit,
    train,
    inspect,
    export,
    adopt,
    calibrate,
    cache,
    quantize,
    lint,
    explain,
    build,
    bench,
    compare,
    serve,
    load,
    triton_repo,
    triton_check,
    data,
    gpu_check,
    doctor,
):
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name.replace("_", "-"))(getattr(_module, _name))


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGTERM, _leave_cleanly)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _leave_cleanly)
    app()


def _leave_cleanly(signal_number: int, _frame: FrameType | None) -> None:
    """Unwind the stack, so that temporary files are removed."""
    sys.exit(128 + signal_number)
