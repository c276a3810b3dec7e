// Comingfrom makes the calls of docs/coming-from.md.
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
	if err := calls(context.Background(), client); err != nil {
		log.Fatal(err)
	}
	fmt.Println("all calls were made")
}

func calls(ctx context.Context, client *fencepost.Client) error {
	mutex := client.Mutex("x", fencepost.TTL(8*time.Second))
	held, err := mutex.Lock(ctx)
	if err != nil {
		return err
	}
	if _, err := mutex.TryLock(ctx); !errors.Is(err, fencepost.ErrBusy) {
		return fmt.Errorf("granted to two: %w", err)
	}
	if err := held.Check(); err != nil {
		return err
	}
	early := held.Token()
	if err := held.Unlock(); err != nil {
		return err
	}
	mutex = client.Mutex("x", fencepost.Wait(16*time.Second))
	var late int64
	work := func(ctx context.Context) error {
		late = fencepost.From(ctx).Token()
		return ctx.Err()
	}
	err = mutex.Do(ctx, func(held *fencepost.Held) error { return work(held) })
	if err == nil && late <= early {
		return errors.New("the token has not grown")
	}
	return err
}
