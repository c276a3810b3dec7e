// Endpoint is a web service that takes a lock for each request, works, and answers.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

func main() {
	address := flag.String("listen", "127.0.0.1:8080", "where to listen")
	flag.Parse()
	client, err := fencepost.Open(fencepost.Config{})
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/orders", func(w http.ResponseWriter, r *http.Request) {
		lock := client.Mutex("order/"+r.FormValue("id"), fencepost.Wait(3*time.Second))
		// If the caller hangs up, its context ends: the request for the lock is withdrawn, or the work is told to stop.
		err := lock.Do(r.Context(), func(held *fencepost.Held) error {
			select {
			case <-time.After(200 * time.Millisecond): // the work
			case <-held.Done():
				return held.Err()
			}
			return held.Check()
		})
		switch {
		case err == nil:
			fmt.Fprintln(w, "done")
		case errors.Is(err, fencepost.ErrTimeout):
			http.Error(w, "somebody else changes this order", http.StatusConflict)
		case errors.Is(err, fencepost.ErrUnreachable):
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		default:
			log.Print(err)
			http.Error(w, "failed", http.StatusInternalServerError)
		}
	})
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("http://" + listener.Addr().String() + "/orders?id=7")
	log.Fatal(http.Serve(listener, nil))
}
