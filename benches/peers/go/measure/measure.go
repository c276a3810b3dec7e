// Package measure speaks the words of ../../README.md for a lock library of Go.
package measure

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
)

// Lock takes a lock and returns what releases it, or nil if the library gave up. Calls for one task follow one another; those for several
// tasks run at the same time.
type Lock func(task int, name string) func()

// Run does what the command line asks for. Before tasks lock, prepare is called with their number, where a library needs something for each.
func Run(prepare func(tasks int), lock Lock) {
	switch os.Args[1] {
	case "cycle":
		prepare(1)
		cycle(number(os.Args[3]), lock)
	case "tasks":
		prepare(number(os.Args[3]))
		grants, span := load(number(os.Args[3]), number(os.Args[4]), func(task int) func() {
			return lock(task, fmt.Sprintf("task/%d", task))
		})
		fmt.Printf("{\"rate\":%f}\n", float64(grants)/span.Seconds())
	case "drain":
		drain(os.Args[3], prepare, lock)
	}
}

// Check ends the program at an error.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	number, err := strconv.Atoi(text)
	Check(err)
	return number
}

func cycle(count int, lock Lock) {
	times := make([]float64, 0, count)
	for range count {
		start := time.Now()
		lock(0, "uncontended")()
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
	}
	slices.Sort(times)
	fmt.Printf("{\"p50\":%f}\n", times[count/2])
}

func drain(name string, prepare func(int), lock Lock) {
	fmt.Println("ready")
	var held func()
	var waiting []chan int64
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "hold":
			// The holder is a task beside the waiters.
			prepare(1)
			held = lock(0, name)
			fmt.Println("held")
		case "line":
			waiters := number(words[1])
			prepare(waiters + 1)
			for waiter := range waiters {
				granted := make(chan int64, 1)
				waiting = append(waiting, granted)
				go func() {
					defer close(granted)
					if unlock := lock(waiter+1, name); unlock != nil {
						granted <- time.Now().UnixMicro()
						unlock()
					}
				}()
			}
			fmt.Println("waiting")
		case "load":
			tasks := number(words[1])
			prepare(tasks)
			grants, _ := load(tasks, number(words[2]), func(task int) func() { return lock(task, name) })
			fmt.Println("loaded", grants)
		case "free":
			fmt.Println("freed", time.Now().UnixMicro())
			held()
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

// load lets so many tasks take and release locks for so many seconds, and returns how often they were granted one, and how long it took.
func load(tasks int, seconds int, take func(task int) func()) (int64, time.Duration) {
	start := time.Now()
	end := start.Add(time.Duration(seconds) * time.Second)
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
	return grants.Load(), time.Since(start)
}
