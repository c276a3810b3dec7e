// go-zookeeper on the measuring line: see ../../README.md for the words it is spoken to with.
package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

var client *zk.Conn

type quiet struct{}

func (quiet) Printf(string, ...interface{}) {}

func lock(name string) *zk.Lock {
	lock := zk.NewLock(client, "/"+name, zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		panic(err)
	}
	return lock
}

func main() {
	hosts := strings.Split(strings.TrimPrefix(os.Args[2], "zookeeper://"), ",")
	var err error
	client, _, err = zk.Connect(hosts, 30*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		panic(err)
	}
	switch os.Args[1] {
	case "cycle":
		count, _ := strconv.Atoi(os.Args[3])
		cycle(count)
	case "drain":
		drain(os.Args[3])
	}
}

func cycle(count int) {
	times := make([]float64, 0, count)
	for range count {
		start := time.Now()
		lock("uncontended").Unlock()
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
	}
	slices.Sort(times)
	fmt.Printf("{\"p50\":%f}\n", times[count/2])
}

func drain(name string) {
	fmt.Println("ready")
	var held *zk.Lock
	var waiting []chan int64
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		word, count, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "hold":
			held = lock(name)
			fmt.Println("held")
		case "line":
			waiters, _ := strconv.Atoi(count)
			for range waiters {
				granted := make(chan int64, 1)
				waiting = append(waiting, granted)
				go func() {
					mine := lock(name)
					granted <- time.Now().UnixMicro()
					mine.Unlock()
				}()
			}
			fmt.Println("waiting")
		case "free":
			fmt.Println("freed", time.Now().UnixMicro())
			held.Unlock()
		default:
			done := "done"
			for _, granted := range waiting {
				done += fmt.Sprintf(" %d", <-granted)
			}
			waiting = nil
			fmt.Println(done)
		}
	}
}
