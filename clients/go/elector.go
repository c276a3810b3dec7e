package fencepost

import (
	"context"
	"errors"
	"time"
)

// Elector makes one of several processes the leader: the one that holds Lock. It is like the elector of client-go, but Run does not return
// when the leader is lost: it waits to lead again.
type Elector struct {
	// Lock has the same name in all candidates.
	Lock *Mutex
	// OnStartedLeading is called in a goroutine of its own when this process leads. Its context is cancelled when it no longer does, and
	// [From] finds the lock with its token. Return then: this process does not lead again before that, and nobody does who takes over
	// after a cancelled Run.
	OnStartedLeading func(ctx context.Context)
	// OnStoppedLeading is called once after each term: at once if the lock is lost, and else when OnStartedLeading has returned.
	// It may be nil.
	OnStoppedLeading func()
	// OnError is told each error after which Run tries again. It may be nil.
	OnError func(err error)
}

// Run is a candidate until the context ends, and returns its error then. It returns before only if the request is not valid.
func (e *Elector) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		held, err := e.Lock.Lock(ctx)
		switch {
		case err == nil:
			e.lead(held)
		case errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported):
			return err
		case ctx.Err() == nil && !errors.Is(err, ErrTimeout):
			if e.OnError != nil {
				e.OnError(err)
			}
			sleep(ctx, time.Second)
		}
	}
	return ctx.Err()
}

func (e *Elector) lead(held *Held) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.OnStartedLeading(held)
	}()
	<-held.Done()
	select {
	case <-ended:
	case <-held.renewal.Done(): // lost, also while the work ends
	}
	if e.OnStoppedLeading != nil {
		e.OnStoppedLeading()
	}
	<-ended
	if err := held.Unlock(); err != nil && e.OnError != nil {
		e.OnError(err)
	}
}
