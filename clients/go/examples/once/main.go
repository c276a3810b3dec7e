// Once is a job that all hosts start every night, and that one of them runs.
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
	run, err := client.Once(context.Background(), "nightly", 24*time.Hour, report, fencepost.Retry())
	switch {
	case errors.Is(err, fencepost.ErrBusy):
		fmt.Println("another host runs it now")
	case err != nil:
		log.Fatal(err)
	case run.Here:
		fmt.Println("this host has run it")
	default:
		fmt.Println(run.Host, "has run it since", run.Began.Format(time.TimeOnly))
	}
}

// report gets a context that is cancelled if the lock is lost. An error counts as a failed run.
func report(held *fencepost.Held) error {
	fmt.Println("the report is made")
	return nil
}
