package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"time"
)

type oneTime struct {
	Window string `json:"window"`
	Retry  bool   `json:"retry,omitempty"`
}

// Run is the run of a job.
type Run struct {
	// Here says that the job ran in this call. The other fields are of a run before it.
	Here bool
	// ExitCode is 0 after a good end. It is nil if the run has reported no end.
	ExitCode *int
	// Began and Ended are by the engine's clock. Ended is zero if the run has reported no end.
	Began, Ended time.Time
	Holder, Host string
	PID          int
	Token        int64
}

// UnmarshalJSON reads the run of an answer.
func (r *Run) UnmarshalJSON(text []byte) error {
	var read struct {
		Holder
		ExitCode *int   `json:"exit_code"`
		Since    int64  `json:"since_micros"`
		Ended    *int64 `json:"ended_micros"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	*r = Run{ExitCode: read.ExitCode, Began: time.UnixMicro(read.Since), Holder: read.Holder.Holder, Host: read.Host, PID: read.PID,
		Token: read.Token}
	if read.Ended != nil {
		r.Ended = time.UnixMicro(*read.Ended)
	}
	return nil
}

// Once calls body in one of all the processes that start a job at about the same time. The window is the period of the job, such as 24 h.
//
// If the job has run for this firing, Once returns that run. If a run is under way, the error is [ErrBusy]; with [Wait] it waits for it.
// An error of body counts as a failed run, with the error's ExitCode, as [os/exec.ExitError] has one, or with 1.
func (c *Client) Once(ctx context.Context, name string, window time.Duration, body func(held *Held) error, options ...Option) (Run, error) {
	lock := c.lock(request{Name: name, Once: &oneTime{Window: text(window)}}, options)
	held, err := lock.acquire(ctx, lock.wait)
	var failed *Error
	if errors.Is(err, errHasRun) && errors.As(err, &failed) && failed.run != nil {
		return *failed.run, nil
	}
	if err != nil {
		return Run{}, err
	}
	defer held.Unlock() // if body panics
	run := Run{Here: true, Token: held.token}
	err = body(held)
	code := exitCode(err)
	held.unlock.Do(func() { held.failed = held.release(&code) })
	return run, errors.Join(err, held.failed)
}

// Check tells whether a job of [Client.Once] has succeeded lately.
type Check struct {
	// Status is "ok", "warning" if the lock is held for too long, "critical" if no run has succeeded lately or the last one failed, or
	// "unknown". Message is a sentence for people, and Code the exit code of monitoring plugins.
	Status, Message string
	Code            int
	// GoodAgeMS is how long ago the last good run ended. It is nil if there was none.
	GoodAgeMS *int64 `json:"good_age_ms"`
	HeldMS    *int64 `json:"held_ms"`
	Runs      *struct{ Running, Last, Good *Run }
}

// Check asks whether a run of the job has succeeded within maxAge, and whether its lock is held for no longer than maxHeld. A limit of 0 is
// not checked.
func (c *Client) Check(ctx context.Context, name string, maxAge, maxHeld time.Duration) (*Check, error) {
	query := url.Values{"name": {name}}
	for field, limit := range map[string]time.Duration{"max_age": maxAge, "max_held": maxHeld} {
		if limit > 0 {
			query.Set(field, text(limit))
		}
	}
	var patience patience
	for {
		check, err := c.check(ctx, "/v1/check?"+query.Encode())
		switch {
		case err == nil:
			return check, nil
		case ctx.Err() != nil:
			return nil, &Error{Name: name, kind: ctx.Err()}
		}
		if err := patience.wait(ctx, c, err); err != nil {
			return nil, err
		}
	}
}

func (c *Client) check(ctx context.Context, path string) (*Check, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	response, err := c.open(ctx, path, "", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	check := &Check{}
	if err := json.NewDecoder(io.LimitReader(response.Body, answerLimit)).Decode(check); err != nil {
		return nil, &Error{kind: errAgain, Detail: err.Error()}
	}
	return check, nil
}

func exitCode(err error) int {
	var exited interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exited) && exited.ExitCode() != 0:
		return exited.ExitCode()
	}
	return 1
}
