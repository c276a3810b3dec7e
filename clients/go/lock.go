package fencepost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Mutex is a lock that one holder has at a time. It is only a description: several goroutines may use it, and each call of Lock is a
// request of its own. A goroutine that locks a name again while it holds it waits for itself, as with [sync.Mutex].
type Mutex struct {
	client  *Client
	request request
	wait    time.Duration // less than 0: without a limit
	stream  bool
}

// request is the body of a request for a lock.
type request struct {
	Name    string   `json:"name"`
	Mode    string   `json:"mode,omitempty"`
	Permits int      `json:"permits,omitempty"`
	Take    int      `json:"take,omitempty"`
	TTL     string   `json:"ttl,omitempty"`
	Wait    string   `json:"wait,omitempty"`
	Holder  string   `json:"holder,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Process process  `json:"process"`
	Once    *oneTime `json:"once,omitempty"`
}

type process struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
}

// Option changes how a lock is taken.
type Option func(*Mutex)

// TTL is how long the lease lasts without a renewal, which is how long others wait if the process dies. It is 30 s without this option.
func TTL(ttl time.Duration) Option { return func(m *Mutex) { m.request.TTL = text(ttl) } }

// Wait limits the wait of Lock, which then fails with [ErrTimeout]. The deadline of a context limits the work under the lock as well,
// because the context of a [Held] lock is derived from it.
func Wait(limit time.Duration) Option {
	return func(m *Mutex) { m.wait = max(limit, 0) }
}

// HolderLabel is what operators see, such as "order 7".
func HolderLabel(label string) Option { return func(m *Mutex) { m.request.Holder = label } }

// Reason says to operators why the lock is held.
func Reason(reason string) Option { return func(m *Mutex) { m.request.Reason = reason } }

// Stream lets the service renew the lock for as long as a connection stands. A loss is told at once, and also when the connection breaks.
func Stream() Option { return func(m *Mutex) { m.stream = true } }

// Retry lets [Client.Once] run a firing again whose run failed, or whose host died.
func Retry() Option {
	return func(m *Mutex) {
		if m.request.Once != nil {
			m.request.Once.Retry = true
		}
	}
}

// Mutex describes the lock with a name.
func (c *Client) Mutex(name string, options ...Option) *Mutex {
	return c.lock(request{Name: name}, options)
}

func (c *Client) lock(request request, options []Option) *Mutex {
	request.Process, request.Holder = process{Host: c.host, PID: os.Getpid()}, c.holder
	m := &Mutex{client: c, request: request, wait: -1}
	if request.Once != nil {
		m.wait = 0
	}
	for _, option := range options {
		option(m)
	}
	return m
}

// Lock waits until the lock is granted. If the context ends before that, the request is withdrawn, and the error is that of the context.
// If the context ends later, the context of the lock ends, too, and the lock is held until Unlock.
func (m *Mutex) Lock(ctx context.Context) (*Held, error) { return m.acquire(ctx, m.wait) }

// TryLock fails with [ErrBusy] if somebody else holds the lock.
func (m *Mutex) TryLock(ctx context.Context) (*Held, error) { return m.acquire(ctx, 0) }

// Do calls body under the lock, and unlocks. The context of body is cancelled if the lock is lost.
//
// If body fails, its error is returned, and the loss is joined to it if there was one. If body ends well and the lock was lost meanwhile,
// the error is [ErrLost]. If the service cannot be reached for the release, the lock becomes free with its lease, and that is no error.
func (m *Mutex) Do(ctx context.Context, body func(held *Held) error) error {
	held, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock() // if body panics
	err = body(held)
	lost := held.Unlock()
	switch {
	case !errors.Is(lost, ErrLost) || errors.Is(err, ErrLost):
		return err
	case err == nil:
		return lost
	}
	return errors.Join(err, lost)
}

// RWMutex is a lock that several readers or one writer have at a time. Its Lock is the writer's.
type RWMutex struct{ Mutex }

// RWMutex describes the lock of readers and writers with a name.
func (c *Client) RWMutex(name string, options ...Option) *RWMutex {
	return &RWMutex{*c.Mutex(name, options...)}
}

// RLock waits until the reader's lock is granted.
func (m *RWMutex) RLock(ctx context.Context) (*Held, error) { return m.RLocker().Lock(ctx) }

// TryRLock fails with [ErrBusy] if a writer holds the lock.
func (m *RWMutex) TryRLock(ctx context.Context) (*Held, error) { return m.RLocker().TryLock(ctx) }

// RLocker returns the reader's lock.
func (m *RWMutex) RLocker() *Mutex {
	shared := m.Mutex
	shared.request.Mode = "shared"
	return &shared
}

// Semaphore has a number of permits, which all its callers have to agree on.
type Semaphore struct{ lock Mutex }

// Semaphore describes the permits with a name.
func (c *Client) Semaphore(name string, permits int, options ...Option) *Semaphore {
	return &Semaphore{*c.lock(request{Name: name, Mode: "permits", Permits: permits}, options)}
}

// Acquire waits until so many permits are granted.
func (s *Semaphore) Acquire(ctx context.Context, take int) (*Held, error) {
	return s.Take(take).Lock(ctx)
}

// TryAcquire fails with [ErrBusy] if there are not so many permits.
func (s *Semaphore) TryAcquire(ctx context.Context, take int) (*Held, error) {
	return s.Take(take).TryLock(ctx)
}

// Take returns the lock of so many permits.
func (s *Semaphore) Take(take int) *Mutex {
	lock := s.lock
	lock.request.Take = take
	return &lock
}

func (m *Mutex) acquire(ctx context.Context, wait time.Duration) (*Held, error) {
	if ctx.Err() != nil {
		return nil, &Error{Name: m.request.Name, kind: ctx.Err()}
	}
	asked := now()
	take := m.byKey
	if m.stream {
		take = m.byStream
	}
	held, err := take(ctx, wait, asked)
	var failed *Error
	if errors.As(err, &failed) {
		failed.Name = m.request.Name
	}
	return held, err
}

// byKey asks with a key, so that a request whose answer is lost can be repeated.
func (m *Mutex) byKey(ctx context.Context, wait time.Duration, asked moment) (*Held, error) {
	body := func() any {
		request := m.request
		request.Wait = waitText(wait, asked)
		return request
	}
	key, limit := newKey(), waitLimit
	if wait == 0 {
		limit = requestLimit
	}
	answer, sent, err := m.client.repeat(ctx, limit, "/v1/acquire", key, body)
	if err == nil {
		held := newHeld(ctx, m, answer, sent)
		go held.renew()
		return held, nil
	}
	if ctx.Err() != nil || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrCertificate) {
		shortly(func(ctx context.Context) { _, _, _ = m.client.repeat(ctx, requestLimit, "/v1/withdraw", key, body) })
	}
	return nil, err
}

// waitText says for how long the service lets a request wait that is sent now. Long waits are kept by repetition.
func waitText(wait time.Duration, asked moment) string {
	if wait == 0 {
		return ""
	}
	left := wait - asked.elapsed()
	if wait < 0 || left > 10*time.Second {
		return "forever"
	}
	return text(max(left, time.Millisecond))
}

func text(duration time.Duration) string {
	return fmt.Sprintf("%dms", (duration + time.Millisecond - 1).Milliseconds())
}
