module peers

go 1.26.0

require github.com/go-zookeeper/zk v1.0.4

require measure v0.0.0

replace measure => ../measure
