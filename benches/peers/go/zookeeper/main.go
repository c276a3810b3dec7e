// go-zookeeper, measured by the words of ../../README.md.
package main

import (
	"measure"
	"os"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

type quiet struct{}

func (quiet) Printf(string, ...interface{}) {}

func main() {
	hosts := strings.Split(strings.TrimPrefix(os.Args[2], "zookeeper://"), ",")
	client, _, err := zk.Connect(hosts, 30*time.Second, zk.WithLogger(quiet{}))
	measure.Check(err)
	measure.Run(func(int) {}, func(_ int, name string) func() {
		lock := zk.NewLock(client, "/"+name, zk.WorldACL(zk.PermAll))
		measure.Check(lock.Lock())
		return func() { lock.Unlock() }
	})
}
