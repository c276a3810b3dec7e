// etcd's own lock, of its concurrency package, on the measuring line: see ../README.md for the words it is spoken to with.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	client "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const (
	lease    = 30
	patience = 20 * time.Second
)

var etcd *client.Client

func main() {
	host := strings.TrimPrefix(os.Args[2], "etcd://")
	var err error
	etcd, err = client.New(client.Config{Endpoints: []string{host}, Logger: zap.NewNop()})
	check(err)
	switch os.Args[1] {
	case "cycle":
		cycle(os.Args[3])
	case "drain":
		drain(os.Args[3])
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// session makes a session: two locks of one session do not exclude each other, so every waiter has one of its own.
func session() *concurrency.Session {
	made, err := concurrency.NewSession(etcd, concurrency.WithTTL(lease))
	check(err)
	return made
}

func lock(session *concurrency.Session, name string) *concurrency.Mutex {
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mutex := concurrency.NewMutex(session, name)
	if mutex.Lock(within) != nil {
		return nil
	}
	return mutex
}

func cycle(text string) {
	count, err := strconv.Atoi(text)
	check(err)
	own := session()
	times := make([]float64, 0, count)
	for range count {
		start := time.Now()
		check(lock(own, "uncontended").Unlock(context.Background()))
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
	}
	slices.Sort(times)
	fmt.Printf("{\"p50\":%f}\n", times[count/2])
	own.Close()
}

func drain(name string) {
	fmt.Println("ready")
	var holder *concurrency.Mutex
	var sessions []*concurrency.Session
	var waiting []chan int64
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		word, text, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "hold":
			holder = lock(session(), name)
			fmt.Println("held")
		case "line":
			waiters, _ := strconv.Atoi(text)
			for len(sessions) < waiters {
				sessions = append(sessions, session())
			}
			for _, own := range sessions[:waiters] {
				granted := make(chan int64, 1)
				waiting = append(waiting, granted)
				go func() {
					defer close(granted)
					if mutex := lock(own, name); mutex != nil {
						granted <- time.Now().UnixMicro()
						mutex.Unlock(context.Background())
					}
				}()
			}
			fmt.Println("waiting")
		case "load":
			tasks, _, _ := strings.Cut(text, " ")
			waiters, _ := strconv.Atoi(tasks)
			for len(sessions) < waiters {
				sessions = append(sessions, session())
			}
			load(text, func(task int) func() {
				mutex := lock(sessions[task], name)
				if mutex == nil {
					return nil
				}
				return func() { mutex.Unlock(context.Background()) }
			})
		case "free":
			fmt.Println("freed", time.Now().UnixMicro())
			holder.Unlock(context.Background())
		default:
			done := "done"
			for _, granted := range waiting {
				if at, ok := <-granted; ok {
					done += fmt.Sprintf(" %d", at)
				}
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
