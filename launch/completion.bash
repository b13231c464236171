# SPDX-License-Identifier: Apache-2.0
# Bash completion of `flexion`: source this file. Commands, options, keys and values are read from the binary's own help, so
# they are those of the version that is being completed.

# Commands: the indented rows of `flexion --help`.
_flexion_commands() { "$1" --help 2>/dev/null | sed -nE 's/^  ([a-z]+) .*/\1/p'; }

# Words after `flexion COMMAND` in its usage lines: actions such as show and check.
_flexion_actions() { "$1" "$2" --help 2>/dev/null | sed -nE "s/^(usage:| +) ?flexion $2 +([a-z]+) .*/\2/p" | sort -u; }

# Of a command, or of an action that has a help of its own.
_flexion_options() { "$@" --help 2>/dev/null | grep -oE -e '--[a-z][a-z-]*' | sort -u; }

# section.key= of every key that exists.
_flexion_keys() {
  "$1" config show --keys 2>/dev/null | awk '
    /^[a-z_]+:$/ { section = substr($1, 1, length($1) - 1); next }
    /^  [a-z_]/ { key = section "." $1 "="; next }
    key != "" { if ($0 !~ /not available yet/) print key; key = "" }'
}

# The words that section.key takes, when it is one of several words.
_flexion_values() { # binary key
  "$1" config show --keys 2>/dev/null | awk -v wanted="$2" '
    /^[a-z_]+:$/ { section = substr($1, 1, length($1) - 1); next }
    /^  [a-z_]/ { key = section "." $1; next }
    key == wanted {
      sub(/ *\[.*/, ""); sub(/^ */, "")
      if ($0 ~ / or / && $0 !~ /^an? /) { gsub(/,| or /, " "); print }
      exit }'
}

_flexion_match() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2"); }

# After `section.key=`: its words, else files. bash makes a word of its own of the =.
_flexion_value() { # binary key current
  _flexion_match "$(_flexion_values "$1" "$2")" "$3"
  [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$3")
}

# A configuration first, its keys after it.
_flexion_configuration() { # binary current
  local word
  for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
    case $word in
      *.yaml | *.yml)
        _flexion_match "$(_flexion_keys "$1")" "$2"
        compopt -o nospace 2>/dev/null
        return
        ;;
    esac
  done
  mapfile -t COMPREPLY < <(compgen -f -X '!*.yaml' -- "$2"; compgen -f -X '!*.yml' -- "$2"; compgen -d -S / -- "$2")
  compopt -o nospace 2>/dev/null
}

_flexion() {
  local binary=${1/#\~\//$HOME/} current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} actions
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    _flexion_match "$(_flexion_commands "$binary") --help --version" "$current"
  elif [ "$current" = = ]; then
    _flexion_value "$binary" "$before" ''
  elif [ "$before" = = ]; then
    _flexion_value "$binary" "${COMP_WORDS[COMP_CWORD - 2]}" "$current"
  elif [[ $current == -* ]]; then
    case ${COMP_WORDS[*]:1:2} in
      'bench attention' | 'bench context')
        _flexion_match "$(_flexion_options "$binary" bench "${COMP_WORDS[2]}")" "$current"
        ;;
      *) _flexion_match "$(_flexion_options "$binary" "${COMP_WORDS[1]}")" "$current" ;;
    esac
  else
    actions=$(_flexion_actions "$binary" "${COMP_WORDS[1]}")
    if [ -n "$actions" ] && [ "$COMP_CWORD" -eq 2 ]; then
      _flexion_match "$actions" "$current"
      return
    fi
    case ${COMP_WORDS[1]} in
      train | config | bench | mask | kernel | plan | doctor) _flexion_configuration "$binary" "$current" ;;
      generate | ckpt) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    esac
  fi
}
complete -o filenames -F _flexion flexion
