// Limit waits for a lock, but not for long.
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
	held, err := client.Mutex("order/7", fencepost.Wait(2*time.Second)).Lock(context.Background())
	var refused *fencepost.Error
	switch {
	case errors.Is(err, fencepost.ErrTimeout) && errors.As(err, &refused):
		fmt.Println("somebody else is at work, try again later")
		for _, by := range refused.Holders { // none if the access token may not read the name
			fmt.Println("it is", by.Holder, "on", by.Host)
		}
		return
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println("the order is changed")
	if err := held.Unlock(); err != nil {
		log.Fatal(err) // ErrLost: somebody else may have changed the order at the same time
	}
}
