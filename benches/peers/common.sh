# Read by the scripts beside it. Their argument is the folder for what they build.
set -eu
place=$1
here=$(cd "$(dirname "$0")" && pwd)

# command_of NAME ARGUMENT…: leaves the command line of a program, one argument a line.
command_of() {
    name=$1
    shift
    printf '%s\n' "$@" > "$place/$name.command"
}

# version_of NAME VERSION: leaves the version of the library that a program is of.
version_of() {
    printf '%s\n' "$2" > "$place/$1.version"
}

# venv NAME REQUIREMENTS: makes an environment of Python. Its interpreter is $python.
venv() {
    python3 -m venv "$place/$1"
    python=$place/$1/bin/python
    "$python" -m pip install --quiet --requirement "$2"
}
