. "$(dirname "$0")/common.sh"
out=$place/java
mvn --quiet --batch-mode --file "$here/java/pom.xml" "-Dout=$out" "-DoutputDirectory=$out/lib" \
    package dependency:copy-dependencies
command_of redisson java -cp "$out/peers.jar:$out/lib/*" Redisson plain
command_of redisson-fair java -cp "$out/peers.jar:$out/lib/*" Redisson fair
command_of redisson-long-work java -cp "$out/peers.jar:$out/lib/*" LongWork
version=$(sed -n '/<artifactId>redisson</{n;s|.*<version>\(.*\)</version>.*|\1|p}' "$here/java/pom.xml")
version_of redisson "$version"
version_of redisson-fair "$version"
