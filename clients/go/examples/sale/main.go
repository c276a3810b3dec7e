// Sale sells the last 5 pieces to 20 customers. The lock makes reading and writing the stock one step.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

const stock = "pieces.txt"

var errSoldOut = errors.New("sold out")

func main() {
	client, err := fencepost.Open(fencepost.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(stock, []byte("5\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	lock := client.Mutex("sale", fencepost.TTL(10*time.Second), fencepost.Wait(time.Minute))
	var customers sync.WaitGroup
	for customer := 1; customer <= 20; customer++ {
		customers.Add(1)
		go func(customer int) {
			defer customers.Done()
			err := lock.Do(context.Background(), sell)
			if err == nil {
				fmt.Println("customer", customer, "has a piece")
			} else if !errors.Is(err, errSoldOut) {
				log.Print("customer ", customer, ": ", err)
			}
		}(customer)
	}
	customers.Wait()
}

func sell(held *fencepost.Held) error {
	text, err := os.ReadFile(stock)
	if err != nil {
		return err
	}
	pieces, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if pieces == 0 {
		return errSoldOut
	}
	if err := held.Check(); err != nil {
		return err
	}
	return os.WriteFile(stock, []byte(strconv.Itoa(pieces-1)+"\n"), 0o600)
}
