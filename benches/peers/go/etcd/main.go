// etcd's own lock, of its concurrency package, measured by the words of ../../README.md.
package main

import (
	"context"
	"measure"
	"os"
	"strings"
	"time"

	client "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const (
	lease    = 30
	patience = 20 * time.Second
)

func main() {
	host := strings.TrimPrefix(os.Args[2], "etcd://")
	etcd, err := client.New(client.Config{Endpoints: []string{host}, Logger: zap.NewNop()})
	measure.Check(err)
	// Two locks of one session do not exclude each other, so every task has a session of its own.
	var sessions []*concurrency.Session
	prepare := func(tasks int) {
		for len(sessions) < tasks {
			session, err := concurrency.NewSession(etcd, concurrency.WithTTL(lease))
			measure.Check(err)
			sessions = append(sessions, session)
		}
	}
	measure.Run(prepare, func(task int, name string) func() {
		within, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		mutex := concurrency.NewMutex(sessions[task], name)
		if mutex.Lock(within) != nil {
			return nil
		}
		return func() { mutex.Unlock(context.Background()) }
	})
}
