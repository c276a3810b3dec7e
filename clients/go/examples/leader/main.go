// Leader is a program that runs on several hosts, and works on one of them.
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
	client, err := fencepost.Open(fencepost.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	elector := fencepost.Elector{
		Lock:             client.Mutex("leader", fencepost.TTL(15*time.Second)),
		OnStartedLeading: work,
		OnStoppedLeading: func() { fmt.Println("no longer the leader") },
		OnError:          func(err error) { log.Print(err) },
	}
	if err := elector.Run(ctx); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// work returns when this host no longer leads, or is to stop.
func work(ctx context.Context) {
	fmt.Println("the leader, with token", fencepost.From(ctx).Token())
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
			if ctx.Err() == nil { // asks the clock
				fmt.Println("one round of work")
			}
		}
	}
}
