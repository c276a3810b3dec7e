package fencepost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/clients/go/internal/service"
)

func open(t *testing.T) *Client {
	t.Helper()
	client, err := Open(Config{URLs: []string{service.Start(t)}, Holder: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestManyGoroutinesOneCounter(t *testing.T) {
	client, counter := open(t), 0
	lock := client.Mutex("counter")
	var all sync.WaitGroup
	var last int64
	for range [8]struct{}{} {
		all.Add(1)
		go func() {
			defer all.Done()
			for range [5]struct{}{} {
				if err := lock.Do(context.Background(), func(held *Held) error {
					if counter++; held.Token() <= last {
						t.Errorf("the token %d is not greater than %d", held.Token(), last)
					}
					last = held.Token()
					return held.Check()
				}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	if counter != 40 {
		t.Errorf("%d instead of 40", counter)
	}
}

func TestContextOfALock(t *testing.T) {
	client := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	held, err := client.Mutex("job").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	child, stop := context.WithTimeout(held, time.Hour)
	defer stop()
	if From(child) != held {
		t.Error("the lock is not found from its context")
	}
	// The end of the caller's context stops the work, and the lock is held until Unlock.
	cancel()
	<-child.Done()
	if err := held.Check(); err != nil {
		t.Error(err)
	}
	if _, err := client.Mutex("job").TryLock(context.Background()); !errors.Is(err, ErrBusy) {
		t.Errorf("%v instead of busy", err)
	}
	for range [2]struct{}{} {
		if err := held.Unlock(); err != nil {
			t.Error(err)
		}
	}
	again, err := client.Mutex("job").TryLock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Unlock(); err != nil {
		t.Error(err)
	}
	<-again.Done()
	var ended *Error
	if !errors.As(context.Cause(again), &ended) || ended.Loss != "released" {
		t.Errorf("%v instead of released", context.Cause(again))
	}
}

func TestDeadlineOfAWait(t *testing.T) {
	client := open(t)
	held, err := client.Mutex("job").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := client.Mutex("job").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v instead of the deadline", err)
	}
	if err := held.Unlock(); err != nil {
		t.Error(err)
	}
	// Nothing of the request that was given up is in the way.
	if err := client.Mutex("job").Do(context.Background(), func(*Held) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestACancelledRequestLeavesNothingBehind(t *testing.T) {
	cancelAtEachStep(t, 10*time.Second) // what is left would stay for 30 s
}

func TestACancelledStreamLeavesNothingBehind(t *testing.T) {
	cancelAtEachStep(t, 5*time.Second, Stream()) // what is left would stay for 10 s
}

func cancelAtEachStep(t *testing.T, wait time.Duration, options ...Option) {
	client := open(t)
	began := now()
	if err := client.Mutex("job", options...).Do(context.Background(), func(*Held) error { return nil }); err != nil {
		t.Fatal(err)
	}
	const steps = 40
	took := began.elapsed()
	for step := range [steps]struct{}{} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(step)*took/steps)
		_ = client.Mutex("job", options...).Do(ctx, func(*Held) error { return nil })
		cancel()
		if err := client.Mutex("job", Wait(wait)).Do(context.Background(), func(*Held) error { return nil }); err != nil {
			t.Fatalf("cancelled at step %d: %v", step, err)
		}
	}
}

func TestPanicReleases(t *testing.T) {
	client := open(t)
	func() {
		defer func() { _ = recover() }()
		_ = client.Mutex("job").Do(context.Background(), func(*Held) error { panic("the body") })
	}()
	held, err := client.Mutex("job").TryLock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestTheClockDecidesBeforeTheTimer(t *testing.T) {
	client := &Client{urls: []string{"http://127.0.0.1:1"}}
	held := newHeld(context.Background(), client.Mutex("job"), &answer{Lease: "lease", Token: 1, ValidMS: 60_000}, now())
	if held.Err() != nil || held.Check() != nil {
		t.Fatal("it is held")
	}
	// As after a pause, when the alarm has not rung yet.
	held.mu.Lock()
	held.alarm.Stop()
	held.valid = 0
	held.mu.Unlock()
	if held.Err() == nil {
		t.Error("the context does not ask the clock")
	}
	if cause := context.Cause(held); !errors.Is(cause, ErrLost) || !errors.Is(cause, held.Check()) {
		t.Errorf("%v is the cause", cause)
	}
	held.extend(now(), time.Minute)
	if held.Check() == nil {
		t.Error("a lock that was lost is held again")
	}
}

func TestNoSecretIsShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("hidden\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := Config{URLs: []string{"http://127.0.0.1:1"}, Token: "hidden", TokenFile: file}
	client, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	held := newHeld(context.Background(), client.Mutex("job"), &answer{Lease: "hidden", ValidMS: 60_000}, now())
	defer held.end(&Error{kind: ErrLost})
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, value := range []any{config, client, held} {
			if text := fmt.Sprintf(format, value); strings.Contains(text, "hidden") {
				t.Errorf("%s shows %s", format, text)
			}
		}
	}
}

func TestHowLongTheServiceLetsWait(t *testing.T) {
	asked := now()
	for wait, wanted := range map[time.Duration]string{0: "", -1: "forever", time.Minute: "forever", time.Nanosecond: "1ms"} {
		if found := waitText(wait, asked); found != wanted {
			t.Errorf("%v: %q instead of %q", wait, found, wanted)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, one := range []struct {
		status int
		code   string
		kind   error
	}{
		{502, "", errAgain}, {404, "", ErrInvalid}, {503, "closing", errClosing}, {429, "too-many-requests", errAgain},
		{502, "denied-by-engine", ErrInvalid}, {401, "unauthenticated", ErrDenied}, {403, "proxied", ErrDenied}, {409, "busy", ErrBusy},
		{410, "lease-ended", ErrLost}, {501, "unsupported", ErrUnsupported}, {422, "key-reused", ErrInvalid},
	} {
		if found := kindOf(one.status, one.code); found != one.kind {
			t.Errorf("%d %s: %v", one.status, one.code, found)
		}
	}
}

func ExampleMutex_Do() {
	client, err := Open(Config{URLs: []string{"http://127.0.0.1:7070"}})
	if err != nil {
		panic(err)
	}
	err = client.Mutex("stock/42").Do(context.Background(), func(held *Held) error {
		return held.Check() // before each step that cannot be undone
	})
	if errors.Is(err, ErrLost) {
		fmt.Println("somebody else may have been at work at the same time")
	}
}
