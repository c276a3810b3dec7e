package fencepost

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Held is a lock that is held. It is also a context, which is cancelled when the lock is lost or unlocked: [context.Cause] is then the
// [Error] of the loss. Give it to all work under the lock. It is renewed in the background until Unlock.
type Held struct {
	context.Context
	client *Client
	name   string
	lease  string
	token  int64

	renewal context.Context // ends with the lock
	stop    context.CancelFunc
	cancel  context.CancelCauseFunc
	unlock  sync.Once
	failed  error // of the release

	mu    sync.Mutex
	sent  moment
	valid time.Duration
	ended *Error
	alarm *time.Timer
	last  error // of the renewal
}

type heldKey struct{}

// From returns the lock that a context belongs to, or nil.
func From(ctx context.Context) *Held {
	held, _ := ctx.Value(heldKey{}).(*Held)
	return held
}

func newHeld(ctx context.Context, m *Mutex, granted *answer, sent moment) *Held {
	h := &Held{client: m.client, name: m.request.Name, lease: granted.Lease, token: granted.Token, sent: sent, valid: granted.valid()}
	h.Context, h.cancel = context.WithCancelCause(ctx)
	h.renewal, h.stop = context.WithCancel(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alarm = time.AfterFunc(0, h.watch)
	return h
}

// Token is the fencing token: it is greater than that of each earlier grant of the lock.
func (h *Held) Token() int64 { return h.token }

// Check asks the clock, and returns nil if the lock is still held. Otherwise it returns an [Error] of the kind [ErrLost]. Call it before
// each step that cannot be undone: a context is only as quick as its timers, which stop while the process or the machine is stopped.
func (h *Held) Check() error {
	if ended := h.check(); ended != nil {
		return ended
	}
	return nil
}

func (h *Held) check() *Error {
	h.mu.Lock()
	over, ended, last := h.valid-h.sent.elapsed() <= 0, h.ended, h.last
	h.mu.Unlock()
	if ended != nil || !over {
		return ended
	}
	lost := &Error{Name: h.name, kind: ErrLost, Loss: "expired"}
	if last != nil {
		lost.Detail = "it was not renewed: " + last.Error()
	}
	return h.end(lost)
}

// Err is that of the context. It asks the clock, as Check does.
func (h *Held) Err() error {
	h.check()
	return h.Context.Err()
}

// Value is that of the context.
func (h *Held) Value(key any) any {
	if key == (heldKey{}) {
		return h
	}
	return h.Context.Value(key)
}

// String shows no secret.
func (h *Held) String() string { return fmt.Sprintf("fencepost.Held(%q, token %d)", h.name, h.token) }

// GoString is String.
func (h *Held) GoString() string { return h.String() }

// Unlock releases the lock. If the lock was lost before, the error is [ErrLost]. If the service cannot be reached, the lock becomes free
// when its lease ends. Only the first call releases, and all return what it returned.
func (h *Held) Unlock() error {
	h.unlock.Do(func() { h.failed = h.release(nil) })
	return h.failed
}

func (h *Held) release(exitCode *int) error {
	sends := 0
	body := func() any {
		sends++
		return struct {
			Lease    string `json:"lease"`
			ExitCode *int   `json:"exit_code,omitempty"`
		}{h.lease, exitCode}
	}
	h.check() // the time may be over, and the alarm late
	h.mu.Lock()
	left := h.look()
	h.mu.Unlock()
	released := &Error{Name: h.name, kind: ErrLost, Loss: "released", Detail: "the program has unlocked it"}
	if ended := h.end(released); ended != released {
		// The lease may have time left, which the next holder need not wait for.
		shortly(func(ctx context.Context) {
			_, _, _ = h.client.repeat(ctx, requestLimit, "/v1/leases/release", "", body)
		})
		return ended
	}
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	_, _, err := h.client.repeat(ctx, requestLimit, "/v1/leases/release", "", body)
	var failed *Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &Error{Name: h.name, kind: ErrUnreachable, Detail: "it was not released before its lease ended"}
	case errors.As(err, &failed) && (sends > 1 || failed.repeated) && (failed.Loss == "released" || failed.Loss == "deleted"):
		return nil // by a request whose answer was lost
	case failed != nil:
		failed.Name = h.name
	}
	return err
}

// end notes that the lock has ended, and returns how it ended first.
func (h *Held) end(how *Error) *Error {
	h.mu.Lock()
	if h.ended != nil {
		defer h.mu.Unlock()
		return h.ended
	}
	h.ended = how
	h.alarm.Stop()
	h.mu.Unlock()
	h.stop()
	h.cancel(how)
	return how
}

// extend notes that the lock is valid for a time after a request.
func (h *Held) extend(sent moment, valid time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent, h.valid, h.last = sent, valid, nil
}

// look returns how long the lock is still valid.
func (h *Held) look() time.Duration { return h.valid - h.sent.elapsed() }

// watch ends the lock when its time is over. It looks each second, because timers stop while the machine is suspended.
func (h *Held) watch() {
	if h.check() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended == nil {
		h.alarm.Reset(min(max(h.look(), 0), time.Second))
	}
}

// renew extends the lease until the lock ends.
func (h *Held) renew() {
	body := map[string]string{"lease": h.lease}
	var pauses pauses
	var pause time.Duration
	for {
		h.mu.Lock()
		next := h.valid/3 - h.sent.elapsed()
		h.mu.Unlock()
		sleep(h.renewal, max(next, pause))
		if h.renewal.Err() != nil {
			return
		}
		h.mu.Lock()
		left := h.look()
		h.mu.Unlock()
		sent := now()
		// Half of the time is left for another address.
		limit := min(max(left/2, 100*time.Millisecond), requestLimit)
		answer, err := h.client.post(h.renewal, limit, "/v1/leases/extend", "", body)
		var failed *Error
		switch {
		case h.renewal.Err() != nil:
			return
		case err == nil:
			h.extend(sent, answer.valid())
			pauses, pause = 0, 0
			continue
		case errors.Is(err, ErrLost) && errors.As(err, &failed):
			failed.Name = h.name
			h.end(failed)
			return
		}
		h.mu.Lock()
		h.last = err
		h.mu.Unlock()
		pause = pauses.next()
	}
}
