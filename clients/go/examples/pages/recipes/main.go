// Recipes makes the calls of docs/recipes.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

func main() {
	client, err := fencepost.Open(fencepost.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, recipe := range []func(context.Context, *fencepost.Client) error{lock, several, segment, nightly} {
		if err := recipe(ctx, client); err != nil {
			log.Fatal(err)
		}
	}
	lead := func(ctx context.Context) {
		fmt.Println("leader, term", fencepost.From(ctx).Token())
		cancel()
	}
	elector := fencepost.Elector{Lock: client.Mutex("leader"), OnStartedLeading: lead}
	if err := elector.Run(ctx); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func lock(ctx context.Context, client *fencepost.Client) error {
	mutex := client.Mutex("x")
	held, err := mutex.Lock(ctx)
	if err != nil {
		return err
	}
	if err := held.Check(); err != nil {
		return err
	}
	if _, err := client.Mutex("x", fencepost.Wait(100*time.Millisecond)).Lock(ctx); !errors.Is(err, fencepost.ErrTimeout) {
		return fmt.Errorf("granted to two: %w", err)
	}
	early := held.Token()
	if err := held.Unlock(); err != nil {
		return err
	}
	if held, err = client.Mutex("x", fencepost.Wait(3*time.Second)).Lock(ctx); err != nil {
		return err
	}
	if held.Token() <= early {
		return errors.New("the token has not grown")
	}
	if err := held.Unlock(); err != nil {
		return err
	}
	return mutex.Do(ctx, func(held *fencepost.Held) error { return work(held) })
}

func work(ctx context.Context) error { return fencepost.From(ctx).Check() }

func several(ctx context.Context, client *fencepost.Client) error {
	return client.Mutex("a").Do(ctx, func(held *fencepost.Held) error {
		return client.Mutex("b").Do(held, func(held *fencepost.Held) error { return work(held) })
	})
}

// segment takes the first free segment, and waits if there is none.
func segment(ctx context.Context, client *fencepost.Client) error {
	for number := 0; number < 20; number++ {
		held, err := client.Mutex(fmt.Sprint("x/", number)).TryLock(ctx)
		if errors.Is(err, fencepost.ErrBusy) {
			continue
		}
		if err != nil {
			return err
		}
		return held.Unlock()
	}
	return client.Mutex("x/0").Do(ctx, func(held *fencepost.Held) error { return work(held) })
}

func nightly(ctx context.Context, client *fencepost.Client) error {
	job := func(held *fencepost.Held) error { return held.Check() }
	if run, err := client.Once(ctx, "nightly", 24*time.Hour, job); err != nil || !run.Here {
		return fmt.Errorf("it did not run: %w", err)
	}
	if run, err := client.Once(ctx, "nightly", 24*time.Hour, job); err != nil || run.Here {
		return fmt.Errorf("it ran twice: %w", err)
	}
	return nil
}
