package fencepost

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of an [Error], for [errors.Is].
var (
	// ErrBusy says that somebody else holds the lock, and that the call was not to wait.
	ErrBusy = errors.New("the lock is busy")
	// ErrTimeout says that the time of [Wait] is over.
	ErrTimeout = errors.New("the lock was busy for the whole wait")
	// ErrLost says that the lock is no longer held: stop the work.
	ErrLost = errors.New("the lock is lost")
	// ErrDenied says that the access token is not valid, or not for this name.
	ErrDenied = errors.New("denied")
	// ErrUnreachable says that no address gave an answer that counts for 10 s.
	ErrUnreachable = errors.New("the lock service is unreachable")
	// ErrCertificate says that no known authority has signed the certificate of the service.
	ErrCertificate = errors.New("the certificate of the lock service is not trusted")
	// ErrInvalid says that the request breaks a rule, so that it fails each time.
	ErrInvalid = errors.New("the request is not valid")
	// ErrUnsupported says that the engine behind the service cannot do this.
	ErrUnsupported = errors.New("not supported")

	errAgain    = errors.New("no answer that counts")
	errClosing  = fmt.Errorf("%w: this copy of the service closes", errAgain)
	errHasRun   = errors.New("the job has run")
	errReplaced = errors.New("the access token was replaced")
)

// Error is each error of this package. Its kind is found by [errors.Is]; if a context ended the wait, also by the error of the context.
type Error struct {
	// Name is the name of the lock.
	Name string
	// Detail says what happened, for a person.
	Detail string
	// Loss says how a lock was lost: "expired", "evicted", "deleted", "released".
	Loss string
	// Why is the reason that the operator gave for an eviction.
	Why string
	// Holders are those who hold a busy lock, if the access token may read its name.
	Holders []Holder

	kind error
	run  *Run
	// repeated says that an earlier request may have had its effect.
	repeated bool
}

// Holder is somebody who holds a lock.
type Holder struct {
	Holder string `json:"holder"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Token  int64  `json:"token"`
}

func (e *Error) Error() string {
	text := fmt.Sprintf("fencepost: %s: %v", e.Name, e.kind)
	for _, more := range []string{e.Loss, e.Why, e.Detail} {
		if more != "" {
			text += ": " + more
		}
	}
	held := make([]string, 0, len(e.Holders))
	for _, by := range e.Holders {
		held = append(held, fmt.Sprintf("%q (%s, process %d)", by.Holder, by.Host, by.PID))
	}
	if len(held) > 0 {
		text += ": held by " + strings.Join(held, ", ")
	}
	return text
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.kind }

// kindOf returns what an answer means that is no success. Code is empty if the service did not write the answer.
func kindOf(status int, code string) error {
	switch code {
	case "busy":
		return ErrBusy
	case "timed-out":
		return ErrTimeout
	case "already-run":
		return errHasRun
	case "lease-ended":
		return ErrLost
	case "unsupported":
		return ErrUnsupported
	case "closing":
		return errClosing
	case "in-progress", "overloaded", "too-many-requests", "too-many-waiting", "unreachable":
		return errAgain
	}
	switch {
	case code == "" && status >= 500:
		return errAgain
	case status == 401 || status == 403:
		return ErrDenied
	}
	return ErrInvalid
}
