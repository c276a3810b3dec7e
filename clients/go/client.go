// Package fencepost is a client of the lock service, fencepost serve.
//
//	client, err := fencepost.Open(fencepost.Config{URLs: []string{"http://127.0.0.1:7070"}})
//	err = client.Mutex("stock/42").Do(ctx, func(held *fencepost.Held) error {
//		return sell(held, held.Token()) // held is a context that is cancelled if the lock is lost
//	})
//
// It needs nothing but the standard library. A [Held] lock is renewed in the background until it is unlocked.
package fencepost

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// requestLimit is for a request that does not wait, and waitLimit for one that does.
	requestLimit, waitLimit = 5 * time.Second, 15 * time.Second
	// giveUp is how long a request is repeated without an answer that counts.
	giveUp = 10 * time.Second
	// answerLimit is the most bytes of an answer that are read.
	answerLimit = 1 << 20
)

// Secret is a text that no log shows.
type Secret string

// String hides the text.
func (Secret) String() string { return "(secret)" }

// GoString hides the text.
func (Secret) GoString() string { return "(secret)" }

// Config says where the service is, and who asks. Only URLs is needed.
type Config struct {
	// URLs are the addresses of the copies of the service. If one does not answer, the next one is asked.
	// Without any, the environment variable FENCEPOST_URL has them, with commas between.
	URLs []string
	// Token is the access token. Without it and TokenFile it is in the environment variable FENCEPOST_SERVICE_TOKEN.
	Token Secret
	// TokenFile has the access token. It is read again when the service refuses the one that it had.
	TokenFile string
	// CAFile has the certificates of the authorities to trust instead of those of the system, in PEM.
	CAFile string
	// TLS is for all else, for example a certificate of the client.
	TLS *tls.Config
	// Holder is the label that operators see, unless a lock has its own.
	Holder string
}

// Client asks the lock service. It may be used by several goroutines at the same time.
type Client struct {
	urls      []string
	current   atomic.Uint64
	http      *http.Client
	tokenFile string
	holder    string
	host      string

	mu    sync.Mutex
	token Secret
}

// Open makes a client. It sends nothing yet.
func Open(config Config) (*Client, error) {
	if len(config.URLs) == 0 {
		config.URLs = strings.FieldsFunc(os.Getenv("FENCEPOST_URL"), func(r rune) bool { return r == ',' || r == ' ' })
	}
	if len(config.URLs) == 0 {
		return nil, errors.New("fencepost: no address of a lock service: set URLs, or FENCEPOST_URL")
	}
	if config.Token == "" && config.TokenFile == "" {
		config.Token = Secret(os.Getenv("FENCEPOST_SERVICE_TOKEN"))
	}
	settings := config.TLS.Clone()
	if settings == nil {
		settings = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.CAFile != "" {
		pem, err := os.ReadFile(config.CAFile)
		if err != nil {
			return nil, fmt.Errorf("fencepost: the certificates of the authorities: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("fencepost: %s has no certificate in PEM", config.CAFile)
		}
	}
	client := &Client{tokenFile: config.TokenFile, token: config.Token, holder: config.Holder}
	for _, url := range config.URLs {
		client.urls = append(client.urls, strings.TrimRight(url, "/"))
	}
	client.host, _ = os.Hostname()
	client.http = &http.Client{
		// Without HTTP/2, whose one connection would take all requests with it when the network is silent.
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: settings, TLSHandshakeTimeout: requestLimit,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: requestLimit, ResponseHeaderTimeout: waitLimit,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if client.tokenFile == "" {
		return client, nil
	}
	if _, err := client.replaced(""); err != nil {
		return nil, err
	}
	return client, nil
}

// String shows the addresses, and no secret.
func (c *Client) String() string { return "fencepost.Client" + fmt.Sprint(c.urls) }

// GoString is String.
func (c *Client) GoString() string { return c.String() }

// replaced reads the access token from its file, and returns whether it is another one than that which was used.
func (c *Client) replaced(used Secret) (bool, error) {
	if c.tokenFile == "" {
		return false, nil
	}
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return false, fmt.Errorf("fencepost: the access token: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = Secret(strings.TrimSpace(string(text)))
	return c.token != used, nil
}

// answer has the fields of all answers and events.
type answer struct {
	Status  int      `json:"status"`
	Lease   string   `json:"lease"`
	Token   int64    `json:"token"`
	ValidMS int64    `json:"valid_ms"`
	Code    string   `json:"code"`
	Detail  string   `json:"detail"`
	Loss    string   `json:"loss"`
	Why     string   `json:"why"`
	Holders []Holder `json:"holders"`
	Run     *Run     `json:"run"`
}

func (a *answer) valid() time.Duration { return time.Duration(a.ValidMS) * time.Millisecond }

// problem makes the error of an answer that is no success.
func (a *answer) problem() *Error {
	e := &Error{kind: kindOf(a.Status, a.Code), Detail: a.Detail, Why: a.Why, Holders: a.Holders, run: a.Run}
	if e.Detail == "" {
		e.Detail = fmt.Sprintf("status %d", a.Status)
	}
	if e.kind == ErrLost {
		e.Loss = lossOf(a)
	}
	return e
}

func lossOf(a *answer) string {
	if a.Loss == "" {
		return "deleted"
	}
	return a.Loss
}

// open sends one request to the current address, a GET if it has no body, and returns an answer of 2xx, or the error. If it may be repeated, the next address
// is the current one.
func (c *Client) open(ctx context.Context, path, key string, body any) (*http.Response, error) {
	current := c.current.Load()
	response, err := c.send(ctx, current, path, key, body)
	if errors.Is(err, errReplaced) {
		response, err = c.send(ctx, current, path, key, body)
	}
	if errors.Is(err, errReplaced) {
		err = &Error{kind: ErrDenied, Detail: "the service refuses the access token"}
	}
	if errors.Is(err, errAgain) || errors.Is(err, ErrCertificate) {
		c.current.CompareAndSwap(current, current+1)
	}
	return response, err
}

func (c *Client) send(ctx context.Context, current uint64, path, key string, body any) (*http.Response, error) {
	method, content := http.MethodGet, []byte(nil)
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, &Error{kind: ErrInvalid, Detail: err.Error()}
		}
		method, content = http.MethodPost, text
	}
	url := c.urls[current%uint64(len(c.urls))]
	request, err := http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(content))
	if err != nil {
		return nil, &Error{kind: ErrInvalid, Detail: err.Error()}
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	c.mu.Lock()
	token := c.token
	c.mu.Unlock()
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+string(token))
	}
	response, err := c.http.Do(request)
	repeated := broke(err) && ctx.Err() == nil
	if repeated {
		request.Body = io.NopCloser(bytes.NewReader(content))
		response, err = c.http.Do(request)
	}
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return nil, &Error{kind: ErrCertificate, Detail: err.Error()}
	case err != nil:
		return nil, &Error{kind: errAgain, Detail: err.Error()}
	case response.StatusCode < 300:
		return response, nil
	}
	answer, err := read(response)
	if err != nil {
		return nil, err
	}
	if answer.Status == http.StatusUnauthorized {
		if replaced, err := c.replaced(token); err == nil && replaced {
			return nil, errReplaced
		}
	}
	problem := answer.problem()
	problem.repeated = repeated
	return nil, problem
}

// broke says that a connection ended before the answer came. It may have been idle for too long, and the position in the queue is kept at the
// same address.
func broke(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// read reads an answer. One that breaks off is to be repeated. One that is no JSON was written by a proxy, and has no code.
func read(response *http.Response) (*answer, error) {
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return nil, &Error{kind: errAgain, Detail: err.Error()}
	}
	answer := &answer{}
	if err := json.Unmarshal(text, answer); err != nil && response.StatusCode == http.StatusOK {
		return nil, &Error{kind: errAgain, Detail: "the answer is not JSON: " + err.Error()}
	}
	answer.Status = response.StatusCode
	return answer, nil
}

// post sends one request, and reads its answer.
func (c *Client) post(ctx context.Context, limit time.Duration, path, key string, body any) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := c.open(ctx, path, key, body)
	if err != nil {
		return nil, err
	}
	return read(response)
}

// patience decides whether a request that failed is sent again.
type patience struct {
	failing   bool
	since     moment
	pauses    pauses
	untrusted int
}

// answered says that an answer counts, so that the next failure is the first one.
func (p *patience) answered() { *p = patience{} }

// wait returns nil when the request is to be sent again, and otherwise the error of the whole.
func (p *patience) wait(ctx context.Context, c *Client, err error) error {
	if errors.Is(err, ErrCertificate) {
		if p.untrusted++; p.untrusted >= len(c.urls) {
			return err
		}
	} else if !errors.Is(err, errAgain) {
		return err
	}
	// A copy that closes has answered until now.
	if !p.failing || errors.Is(err, errClosing) {
		p.failing, p.since = true, now()
	}
	if p.since.elapsed() >= giveUp {
		return &Error{kind: ErrUnreachable, Detail: err.Error()}
	}
	sleep(ctx, p.pauses.next())
	return nil
}

// pauses are those between two requests: none at first, and then from 100 ms to 1 s.
type pauses time.Duration

func (p *pauses) next() time.Duration {
	pause := time.Duration(*p)
	*p = pauses(min(max(2*pause, 100*time.Millisecond), time.Second))
	return pause
}

// repeat sends a request until its answer is final. It returns the moment before the request that was answered.
func (c *Client) repeat(ctx context.Context, limit time.Duration, path, key string, body func() any) (*answer, moment, error) {
	var patience patience
	for {
		sent := now()
		answer, err := c.post(ctx, limit, path, key, body())
		switch {
		case ctx.Err() != nil:
			return nil, sent, &Error{kind: ctx.Err()}
		case err != nil:
			if err := patience.wait(ctx, c, err); err != nil {
				return nil, sent, err
			}
		case answer.Status == http.StatusAccepted:
			patience.answered()
		default:
			return answer, sent, nil
		}
	}
}

// sleep returns after a time, or when the context ends.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// shortly does work that must be done although its caller gives up, and waits for it for a second at most.
func shortly(work func(ctx context.Context)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), giveUp)
		defer cancel()
		work(ctx)
	}()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}

// newKey returns a random UUID.
func newKey() string {
	var key [16]byte
	if _, err := rand.Read(key[:]); err != nil {
		panic("fencepost: no random numbers: " + err.Error())
	}
	key[6], key[8] = key[6]&0x0f|0x40, key[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", key[:4], key[4:6], key[6:8], key[8:10], key[10:])
}
