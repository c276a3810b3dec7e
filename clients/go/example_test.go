package fencepost_test

import (
	"context"
	"log"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

// These are compiled, and not run: the hosts do not exist.
func ExampleOpen() {
	client, err := fencepost.Open(fencepost.Config{
		URLs:      []string{"https://locks-1:7070", "https://locks-2:7070"}, // copies of the service before one engine
		TokenFile: "/etc/locks/token",                                       // read again when the service refuses it
		CAFile:    "/etc/locks/ca.pem",
		Holder:    "shop", // what operators see beside host and process
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := imports(context.Background(), client); err != nil {
		log.Fatal(err)
	}
}

func imports(ctx context.Context, client *fencepost.Client) error {
	held, err := client.Mutex("import").Lock(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	return held.Check()
}
