// redsync, measured by the words of ../../README.md.
package main

import (
	"context"
	"measure"
	"os"
	"strings"
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

func main() {
	var pools []redis.Pool
	for _, url := range strings.Split(os.Args[2], ",") {
		options, err := client.ParseURL(url)
		measure.Check(err)
		pools = append(pools, goredis.NewPool(client.NewClient(options)))
	}
	locks := redsync.New(pools...)
	// It waits for as long as anybody here, with the library's own pauses.
	measure.Run(func(int) {}, func(_ int, name string) func() {
		within, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		mutex := locks.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(1<<30))
		if mutex.LockContext(within) != nil {
			return nil
		}
		return func() { mutex.Unlock() }
	})
}
