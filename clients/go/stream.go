package fencepost

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// silence is how long a stream may say nothing. It says something every 3 s.
const silence = 10 * time.Second

// longestWait is the longest wait with a limit that a stream may ask for.
const longestWait = 300 * time.Second

// events reads server-sent events.
type events struct {
	lines *bufio.Scanner
	alarm *time.Timer
}

func (e *events) next() (event string, data *answer, err error) {
	e.alarm.Reset(silence)
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			event = value
		case "data":
			data = &answer{}
			return event, data, json.Unmarshal([]byte(value), data)
		}
	}
	if e.lines.Err() != nil {
		return "", nil, e.lines.Err()
	}
	return "", nil, io.EOF
}

// byStream asks for a lock that the service renews.
func (m *Mutex) byStream(ctx context.Context, wait time.Duration, asked moment) (*Held, error) {
	var patience patience
	for {
		request, left := m.request, wait-asked.elapsed()
		switch {
		case wait < 0:
			request.Wait = "forever"
		case wait > 0:
			request.Wait = text(min(max(left, time.Millisecond), longestWait))
		}
		held, err := m.listen(ctx, request, &patience)
		switch {
		case err == nil:
			return held, nil
		case ctx.Err() != nil:
			return nil, &Error{kind: ctx.Err()}
		case errors.Is(err, ErrTimeout) && left > longestWait:
			continue
		}
		if err := patience.wait(ctx, m.client, err); err != nil {
			return nil, err
		}
	}
}

// listen opens a stream, and returns when the lock is granted. The first event has the lease of the grant. If the stream ends before the
// grant was read, the lease is released, because the service may have granted the lock at that moment. So a stream whose context ends is read
// until the first event.
func (m *Mutex) listen(ctx context.Context, request request, patience *patience) (*Held, error) {
	streaming, stop := context.WithCancel(context.Background())
	var knowsLease atomic.Bool
	granted := context.AfterFunc(ctx, func() {
		if knowsLease.Load() {
			stop()
		} else {
			time.AfterFunc(time.Second, stop)
		}
	})
	defer granted() // a context that lives for long would keep each attempt
	events, sent := &events{alarm: time.AfterFunc(silence, stop)}, now()
	response, err := m.client.open(streaming, "/v1/hold", "", request)
	if err != nil {
		stop()
		return nil, err
	}
	events.lines = bufio.NewScanner(response.Body)
	lease := ""
	for {
		event, data, err := events.next()
		switch {
		case err != nil:
			stop()
			m.giveBack(lease)
			return nil, &Error{kind: errAgain, Detail: "the stream has ended: " + err.Error()}
		case event == "waiting":
			patience.answered()
			lease = data.Lease
			knowsLease.Store(true)
			if ctx.Err() != nil {
				stop()
				m.giveBack(lease)
				return nil, ctx.Err()
			}
		case event == "refused":
			stop()
			return nil, data.problem()
		case event == "granted":
			held := newHeld(ctx, m, data, sent)
			context.AfterFunc(held.renewal, stop)
			if !granted() {
				_ = held.Unlock()
				return nil, ctx.Err()
			}
			go held.follow(events, sent)
			return held, nil
		}
	}
}

// giveBack releases what may have been granted to a stream that has ended.
func (m *Mutex) giveBack(lease string) {
	if lease == "" {
		return
	}
	body := func() any {
		return struct {
			Lease string `json:"lease"`
		}{lease}
	}
	shortly(func(ctx context.Context) {
		_, _, _ = m.client.repeat(ctx, requestLimit, "/v1/leases/release", "", body)
	})
}

// follow reads the events of a lock that is held.
func (h *Held) follow(events *events, sent moment) {
	defer events.alarm.Stop()
	for {
		event, data, err := events.next()
		switch {
		case err != nil:
			h.end(&Error{Name: h.name, kind: ErrLost, Loss: "expired", Detail: "the stream has ended: " + err.Error()})
			return
		case event == "held":
			h.extend(sent, data.valid())
		case event == "lost":
			h.end(&Error{Name: h.name, kind: ErrLost, Loss: lossOf(data), Why: data.Why, Detail: data.Detail})
			return
		}
	}
}
