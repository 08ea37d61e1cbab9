"""Shell completion: the commands, and the options of each, read from their own --help."""

import contextlib
import io
import os
import re
from importlib import import_module
from pathlib import Path

from rrcluster.errors import ConfigError
from rrcluster.storage import write_file

_PLACES = {
    "bash": Path(".local/share/bash-completion/completions/rrcluster"),
    "zsh": Path(".zfunc/_rrcluster"),
    "fish": Path(".config/fish/completions/rrcluster.fish"),
}  # below the home folder: where each shell looks, zsh once it is asked to
_AFTERWARDS = {
    "bash": "Open a new shell (with bash-completion installed).",
    "zsh": "Add to ~/.zshrc: fpath+=(~/.zfunc); autoload -Uz compinit; compinit",
    "fish": "Open a new shell.",
}


def install(shell: str | None, commands: dict[str, str]) -> str:
    """Write the script where the shell (default: the user's) looks for it; what to tell the user."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _PLACES:
        raise ConfigError(f"shell = {name or 'unknown'}: no completion for it; give one of {', '.join(_PLACES)}.")
    path = write_file(Path.home() / _PLACES[name], script(name, commands))
    return f"Completion for {name}: {path}. {_AFTERWARDS[name]}"


def script(shell: str, commands: dict[str, str]) -> str:
    """The completion script of a shell."""
    options = {name: _options(name) for name in commands}
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands, options)


def _options(command: str) -> list[str]:
    """The long options that the command's --help names."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        import_module(f"rrcluster.cli.{command}_command").main(["--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", plain)))


def _bash(commands: dict[str, str], options: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    {name}) options="{" ".join(words)}" ;;' for name, words in options.items())
    return f"""_rrcluster() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} options=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _rrcluster rrcluster
"""


def _zsh(commands: dict[str, str], options: dict[str, list[str]]) -> str:
    cases = "\n".join(f"  {name}) options=({' '.join(words)}) ;;" for name, words in options.items())
    return f"""#compdef rrcluster
local -a options
if (( CURRENT == 2 )); then
  compadd {" ".join(commands)}
  return
fi
case $words[2] in
{cases}
esac
if [[ $words[CURRENT] == -* ]]; then
  compadd -- $options
else
  _files
fi
"""


def _fish(commands: dict[str, str], options: dict[str, list[str]]) -> str:
    lines = []
    for name, about in commands.items():
        quoted = about.replace("'", "\\'")
        lines.append(f"complete -c rrcluster -n __fish_use_subcommand -f -a {name} -d '{quoted}'")
        lines += [
            f"complete -c rrcluster -n '__fish_seen_subcommand_from {name}' -l {word[2:]}" for word in options[name]
        ]
    return "\n".join(lines) + "\n"
