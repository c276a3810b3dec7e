// Scheduler runs on several hosts, and works on the one that leads.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

func main() {
	client, err := fencepost.Open(fencepost.Config{Holder: "10.0.0.7:8080"}) // the service is in FENCEPOST_URL
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	elector := fencepost.Elector{
		Lock:             client.Mutex("scheduler", fencepost.TTL(10*time.Second)),
		OnStartedLeading: lead,
		OnStoppedLeading: func() { fmt.Println("follower") },
		OnError:          func(err error) { log.Print(err) },
	}
	if err := elector.Run(ctx); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func lead(ctx context.Context) {
	held := fencepost.From(ctx)
	fmt.Println("leader, term", held.Token())
	for held.Check() == nil { // before each step that cannot be undone
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond): // one step
		}
	}
}
