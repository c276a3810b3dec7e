// go-zookeeper on the measuring line: see ../../README.md for the words it is spoken to with.
package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
		case "load":
			load(count, func(int) func() {
				mine := lock(name)
				return func() { mine.Unlock() }
			})
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

// load lets so many tasks take and release one lock for so many seconds, and says how often they were granted it.
func load(text string, take func(task int) func()) {
	count, span, _ := strings.Cut(text, " ")
	tasks, _ := strconv.Atoi(count)
	seconds, _ := strconv.Atoi(span)
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var grants atomic.Int64
	var running sync.WaitGroup
	for task := range tasks {
		running.Add(1)
		go func() {
			defer running.Done()
			for time.Now().Before(end) {
				unlock := take(task)
				if unlock == nil {
					continue
				}
				if time.Now().Before(end) {
					grants.Add(1)
				}
				unlock()
			}
		}()
	}
	running.Wait()
	fmt.Println("loaded", grants.Load())
}
