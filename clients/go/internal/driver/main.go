// Driver is the program that runs the cases of clients/behaviour.json: docs/clients.md describes its commands.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

type command struct {
	ID        int      `json:"id"`
	Do        string   `json:"do"`
	As        string   `json:"as"`
	Client    string   `json:"client"`
	URLs      []string `json:"urls"`
	TokenFile string   `json:"token_file"`
	CA        string   `json:"ca"`
	Name      string   `json:"name"`
	Mode      string   `json:"mode"`
	Permits   int      `json:"permits"`
	Take      int      `json:"take"`
	TTL       string   `json:"ttl"`
	Wait      string   `json:"wait"`
	Holder    string   `json:"holder"`
	Owner     string   `json:"owner"`
	Via       string   `json:"via"`
	Lock      string   `json:"lock"`
	Request   string   `json:"request"`
	Candidate string   `json:"candidate"`
	Body      string   `json:"body"`
	Window    string   `json:"window"`
	MaxAge    string   `json:"max_age"`
	Retry     bool     `json:"retry"`
}

type fields = map[string]any

var (
	errBody        = errors.New("the body has failed")
	errUnsupported = errors.New("the driver does not have this")
)

type driver struct {
	mu      sync.Mutex
	out     *json.Encoder
	clients map[string]*fencepost.Client
	locks   map[string]*fencepost.Held
	cancels map[string]func()
	resigns map[string]func()
}

func main() {
	d := &driver{
		out: json.NewEncoder(os.Stdout), clients: map[string]*fencepost.Client{}, locks: map[string]*fencepost.Held{},
		cancels: map[string]func(){}, resigns: map[string]func(){},
	}
	d.say(fields{"client": "go", "pid": os.Getpid(), "can": []string{}})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command command
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			fmt.Fprintln(os.Stderr, "driver:", err)
			os.Exit(1)
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[command.As] = cancel
		d.mu.Unlock()
		go func() {
			ok, err := d.obey(ctx, &command)
			if err != nil {
				d.say(failure(command.ID, err))
				return
			}
			d.say(fields{"id": command.ID, "ok": ok})
		}()
	}
}

func (d *driver) say(message fields) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.out.Encode(message); err != nil {
		os.Exit(1)
	}
}

func (d *driver) obey(ctx context.Context, c *command) (fields, error) {
	switch c.Do {
	case "open":
		client, err := fencepost.Open(fencepost.Config{URLs: c.URLs, TokenFile: c.TokenFile, CAFile: c.CA})
		put(d, d.clients, c.As, client)
		return fields{}, err
	case "lock":
		held, err := d.lock(ctx, c)
		if err != nil {
			return nil, err
		}
		put(d, d.locks, c.As, held)
		context.AfterFunc(held, func() { d.tell(c.As, held) })
		return state(held), nil
	case "check":
		return state(get(d, d.locks, c.Lock)), nil
	case "release":
		return fields{}, get(d, d.locks, c.Lock).Unlock()
	case "cancel":
		get(d, d.cancels, c.Request)()
		return fields{}, nil
	case "run":
		return fields{}, get(d, d.clients, c.Client).Mutex(c.Name, options(c)...).Do(ctx, func(held *fencepost.Held) error {
			<-held.Done()
			if c.Body == "fail-after-loss" {
				return errBody
			}
			return nil
		})
	case "once":
		return d.once(ctx, c)
	case "check_job":
		check, err := get(d, d.clients, c.Client).Check(ctx, c.Name, duration(c.MaxAge), 0)
		if err != nil {
			return nil, err
		}
		return fields{"status": check.Status, "code": check.Code}, nil
	case "elect":
		d.elect(ctx, c)
		return fields{}, nil
	case "resign":
		get(d, d.resigns, c.Candidate)()
		return fields{}, nil
	}
	return nil, errUnsupported
}

func (d *driver) lock(ctx context.Context, c *command) (*fencepost.Held, error) {
	client := get(d, d.clients, c.Client)
	mutex := client.Mutex(c.Name, options(c)...)
	switch {
	case c.Owner != "":
		return nil, errUnsupported
	case c.Mode == "shared":
		mutex = client.RWMutex(c.Name, options(c)...).RLocker()
	case c.Permits != 0:
		mutex = client.Semaphore(c.Name, c.Permits, options(c)...).Take(max(c.Take, 1))
	}
	if c.Wait == "" {
		return mutex.TryLock(ctx)
	}
	return mutex.Lock(ctx)
}

func options(c *command) []fencepost.Option {
	var options []fencepost.Option
	if c.TTL != "" {
		options = append(options, fencepost.TTL(duration(c.TTL)))
	}
	if c.Wait != "" && c.Wait != "forever" {
		options = append(options, fencepost.Wait(duration(c.Wait)))
	}
	if c.Holder != "" {
		options = append(options, fencepost.HolderLabel(c.Holder))
	}
	if c.Via == "hold" {
		options = append(options, fencepost.Stream())
	}
	if c.Retry {
		options = append(options, fencepost.Retry())
	}
	return options
}

func duration(text string) time.Duration {
	duration, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return duration
}

func (d *driver) once(ctx context.Context, c *command) (fields, error) {
	run, err := get(d, d.clients, c.Client).Once(ctx, c.Name, duration(c.Window), func(*fencepost.Held) error {
		if c.Body == "fail" {
			return errBody
		}
		return nil
	}, options(c)...)
	if err != nil {
		return nil, err
	}
	ran := fields{"ran": run.Here}
	if run.ExitCode != nil {
		ran["exit_code"] = *run.ExitCode
	}
	return ran, nil
}

func (d *driver) elect(ctx context.Context, c *command) {
	ctx, cancel := context.WithCancel(ctx)
	elector := &fencepost.Elector{
		Lock: get(d, d.clients, c.Client).Mutex(c.Name, options(c)...),
		OnStartedLeading: func(ctx context.Context) {
			d.say(fields{"event": "leads", "candidate": c.As})
			<-ctx.Done()
		},
		OnStoppedLeading: func() { d.say(fields{"event": "follows", "candidate": c.As}) },
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = elector.Run(ctx)
	}()
	put(d, d.resigns, c.As, func() {
		cancel()
		<-ended
	})
}

// tell tells that a lock was lost, unless it was released.
func (d *driver) tell(as string, held *fencepost.Held) {
	var lost *fencepost.Error
	if errors.As(held.Check(), &lost) && lost.Loss != "released" {
		d.say(fields{"event": "lost", "lock": as, "loss": lost.Loss, "why": lost.Why})
	}
}

func state(held *fencepost.Held) fields {
	state := fields{"held": true, "token": held.Token()}
	var lost *fencepost.Error
	if errors.As(held.Check(), &lost) {
		state["held"], state["loss"] = false, lost.Loss
		if lost.Why != "" {
			state["why"] = lost.Why
		}
	}
	return state
}

func failure(id int, err error) fields {
	failure := fields{"id": id, "error": "invalid", "message": err.Error()}
	kinds := []struct {
		name string
		kind error
	}{
		{"body", errBody}, {"busy", fencepost.ErrBusy}, {"timeout", fencepost.ErrTimeout}, {"lost", fencepost.ErrLost},
		{"cancelled", context.Canceled}, {"denied", fencepost.ErrDenied}, {"unreachable", fencepost.ErrUnreachable},
		{"certificate", fencepost.ErrCertificate}, {"unsupported", fencepost.ErrUnsupported}, {"unsupported", errUnsupported},
	}
	for _, known := range kinds {
		if errors.Is(err, known.kind) {
			failure["error"] = known.name
			break
		}
	}
	if errors.Is(err, errBody) && errors.Is(err, fencepost.ErrLost) {
		failure["attached"] = "lost"
	}
	var details *fencepost.Error
	if errors.As(err, &details) {
		if len(details.Holders) > 0 {
			failure["holder"] = details.Holders[0].Holder
		}
		if details.Loss != "" {
			failure["loss"], failure["why"] = details.Loss, details.Why
		}
	}
	return failure
}

func get[T any](d *driver, from map[string]T, name string) T {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, ok := from[name]
	if !ok {
		panic("the driver has no " + name)
	}
	return found
}

func put[T any](d *driver, into map[string]T, name string, value T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	into[name] = value
}
