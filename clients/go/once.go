package fencepost

import (
	"context"
	"encoding/json"
	"errors"
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
