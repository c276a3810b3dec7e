// redsync on the measuring line: see ../README.md for the words it is spoken to with.
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

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	client "github.com/redis/go-redis/v9"
)

const (
	lease    = 30 * time.Second
	patience = 20 * time.Second
)

var locks *redsync.Redsync

// lock waits for as long as anybody here, with the library's own pauses.
func lock(name string) *redsync.Mutex {
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mutex := locks.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(1<<30))
	if mutex.LockContext(within) != nil {
		return nil
	}
	return mutex
}

func main() {
	var pools []redis.Pool
	for _, url := range strings.Split(os.Args[2], ",") {
		options, err := client.ParseURL(url)
		if err != nil {
			panic(err)
		}
		pools = append(pools, goredis.NewPool(client.NewClient(options)))
	}
	locks = redsync.New(pools...)
	switch os.Args[1] {
	case "cycle":
		cycle(number(3))
	case "tasks":
		tasks(number(3), time.Duration(number(4))*time.Second)
	case "drain":
		drain(os.Args[3])
	}
}

func number(at int) int {
	number, err := strconv.Atoi(os.Args[at])
	if err != nil {
		panic(err)
	}
	return number
}

func cycle(count int) {
	times := make([]float64, 0, count)
	for range count {
		start := time.Now()
		mutex := lock("uncontended")
		mutex.Unlock()
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
	}
	slices.Sort(times)
	fmt.Printf("{\"p50\":%f}\n", times[count/2])
}

func tasks(count int, span time.Duration) {
	var cycles atomic.Int64
	var running sync.WaitGroup
	start := time.Now()
	for task := range count {
		running.Add(1)
		go func() {
			defer running.Done()
			name := fmt.Sprintf("task/%d", task)
			for time.Since(start) < span {
				if mutex := lock(name); mutex != nil {
					mutex.Unlock()
					cycles.Add(1)
				}
			}
		}()
	}
	running.Wait()
	fmt.Printf("{\"rate\":%f}\n", float64(cycles.Load())/time.Since(start).Seconds())
}

func drain(name string) {
	fmt.Println("ready")
	var held *redsync.Mutex
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
					defer close(granted)
					if mutex := lock(name); mutex != nil {
						granted <- time.Now().UnixMicro()
						mutex.Unlock()
					}
				}()
			}
			fmt.Println("waiting")
		case "load":
			load(count, func(int) func() {
				mutex := lock(name)
				if mutex == nil {
					return nil
				}
				return func() { mutex.Unlock() }
			})
		case "free":
			fmt.Println("freed", time.Now().UnixMicro())
			held.Unlock()
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
