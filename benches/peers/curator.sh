# From the jars of the system's packages, as the servers of the tests are.
. "$(dirname "$0")/common.sh"
jars=
for name in curator-recipes curator-framework curator-client zookeeper zookeeper-jute slf4j-simple guava; do
    jars=$jars/usr/share/java/$name.jar:
done
javac -proc:none -cp "$jars" -d "$place/curator" "$here/zookeeper/Curator.java" "$here/zookeeper/CuratorSoak.java"
quiet=-Dorg.slf4j.simpleLogger.defaultLogLevel=off
command_of curator java "$quiet" -cp "$jars$place/curator" Curator
command_of curator-soak java "$quiet" -cp "$jars$place/curator" CuratorSoak
version_of curator "$(basename /usr/share/java/curator-recipes-[0-9]*.jar .jar | sed 's/curator-recipes-//')"
