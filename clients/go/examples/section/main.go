// Section does one thing at a time, in all processes that use the name.
package main

import (
	"context"
	"fmt"
	"log"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

func main() {
	client, err := fencepost.Open(fencepost.Config{}) // the addresses are in FENCEPOST_URL
	if err != nil {
		log.Fatal(err)
	}
	err = client.Mutex("import").Do(context.Background(), func(held *fencepost.Held) error {
		for _, file := range []string{"a.csv", "b.csv"} {
			if err := held.Check(); err != nil { // before each step that cannot be undone
				return err
			}
			fmt.Println("imported", file)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
