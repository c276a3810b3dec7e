// Package examples runs the programs of docs/clients/go.md, and in the folder pages those of other pages.
package examples

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	fencepost "github.com/fencepost/fencepost/clients/go"
	"github.com/fencepost/fencepost/clients/go/internal/service"
	_ "github.com/lib/pq"
)

const page = "../../../docs/clients/go.md"

// TestThePageShowsTheFiles compares the page with the programs that are run here.
func TestThePageShowsTheFiles(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*/main.go")
	if err != nil || len(files) != 7 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		program, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "```go\n"+string(program)+"```\n") {
			t.Errorf("the page does not show %s as it is", file)
		}
	}
	// A shorter block is a part of a program, or of the client's own examples.
	parts, err := filepath.Glob("pages/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	programs := ""
	for _, file := range append(append(parts, files...), "../example_test.go") {
		program, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		programs += flushLeft(string(program))
	}
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(programs, flushLeft(block[1])) {
			t.Errorf("no program has\n%s", block[1])
		}
	}
}

func flushLeft(text string) string {
	lines := strings.Split(text, "\n")
	for number, line := range lines {
		lines[number] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

// run is a program that has been started.
type run struct {
	t       *testing.T
	command *exec.Cmd
	lines   *bufio.Scanner
}

// built is the folder of the programs.
var built string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if built, err = os.MkdirTemp("", "fencepost-examples-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(built)
		if out, err := exec.Command("go", "build", "-o", built, "./...").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v: %s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// start starts a program of this folder, in an empty folder.
func start(t *testing.T, url, program string, arguments ...string) *run {
	t.Helper()
	command := exec.Command(filepath.Join(built, program), arguments...)
	command.Dir, command.Env, command.Stderr = t.TempDir(), append(os.Environ(), "FENCEPOST_URL="+url), os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() })
	return &run{t, command, bufio.NewScanner(out)}
}

func (r *run) line() string {
	r.t.Helper()
	if !r.lines.Scan() {
		r.t.Fatal("the program has ended")
	}
	return r.lines.Text()
}

// rest returns what the program still says until its end.
func (r *run) rest() (string, error) {
	var text strings.Builder
	for r.lines.Scan() {
		text.WriteString(r.lines.Text() + "\n")
	}
	return text.String(), r.command.Wait()
}

// says fails unless the program says that until its end, and ends well.
func (r *run) says(wanted string) {
	r.t.Helper()
	if text, err := r.rest(); err != nil || !regexp.MustCompile("^"+wanted+"$").MatchString(text) {
		r.t.Errorf("%q (%v) instead of %q", text, err, wanted)
	}
}

func client(t *testing.T, url string) *fencepost.Client {
	client, err := fencepost.Open(fencepost.Config{URLs: []string{url}, Holder: "another"})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestSection(t *testing.T) {
	start(t, service.Start(t), "section").says("imported a.csv\nimported b.csv\n")
}

func TestOnce(t *testing.T) {
	url := service.Start(t)
	start(t, url, "once").says("the report is made\nthis host has run it\n")
	start(t, url, "once").says(`\S+ has run it since \d\d:\d\d:\d\d` + "\n")
}

func TestLeader(t *testing.T) {
	succeeds(t, "leader", "the leader, with token ", "(one round of work\n)*no longer the leader\n")
}

func TestScheduler(t *testing.T) {
	succeeds(t, "scheduler", "leader, term ", "follower\n")
}

// succeeds ends a program that leads. Then another one leads.
func succeeds(t *testing.T, program, leads, ends string) {
	url := service.Start(t)
	first := start(t, url, program)
	if line := first.line(); !strings.HasPrefix(line, leads) {
		t.Fatal(line)
	}
	second := start(t, url, program)
	if err := first.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	first.says(ends)
	if line := second.line(); !strings.HasPrefix(line, leads) {
		t.Fatal(line)
	}
}

func TestCallsOfOtherPages(t *testing.T) {
	start(t, service.Start(t), "comingfrom").says("all calls were made\n")
	start(t, service.Start(t), "recipes").says("leader, term \\d+\n")
	start(t, service.Start(t), "firstlock").says("读库存，处理，写库存，令牌 \\d+\n")
	start(t, service.Start(t), "tutorial").says("(?s).*生成报表\n这台机器跑的： true\n(这台机器跑的： false\n){2}没有互斥：只做允许重复的事\n")
}

func TestLimit(t *testing.T) {
	url := service.Start(t)
	held, err := client(t, url).Mutex("order/7").Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	start(t, url, "limit").says("somebody else is at work, try again later\nit is another on \\S+\n")
	if err := held.Unlock(); err != nil {
		t.Fatal(err)
	}
	start(t, url, "limit").says("the order is changed\n")
}

func TestSale(t *testing.T) {
	sale := start(t, service.Start(t), "sale")
	text, err := sale.rest()
	if err != nil || strings.Count(text, " has a piece\n") != 5 || strings.Count(text, "\n") != 5 {
		t.Errorf("%v: %s", err, text)
	}
	if left, err := os.ReadFile(filepath.Join(sale.command.Dir, "pieces.txt")); err != nil || string(left) != "0\n" {
		t.Errorf("%v: %q are left", err, left)
	}
}

func TestEndpoint(t *testing.T) {
	address := start(t, service.Start(t), "endpoint", "-listen", "127.0.0.1:0").line()
	answers := make(chan string)
	for range [3]struct{}{} {
		go func() {
			response, err := http.Get(address)
			if err != nil {
				answers <- err.Error()
				return
			}
			defer response.Body.Close()
			text, _ := io.ReadAll(response.Body)
			answers <- string(text)
		}()
	}
	for range [3]struct{}{} {
		if answer := <-answers; answer != "done\n" {
			t.Error(answer)
		}
	}
}

func TestFenced(t *testing.T) {
	url, database := service.Start(t), postgres(t)
	db, err := sql.Open("postgres", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sql := func(text string) {
		t.Helper()
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	sql("CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces INTEGER NOT NULL, token BIGINT NOT NULL DEFAULT 0)")
	sql("INSERT INTO stock VALUES (42, 5)")
	t.Setenv("DATABASE_URL", database)
	start(t, url, "fenced").says("now 15 pieces\n")
	sql("UPDATE stock SET token = 9223372036854775807")
	if text, err := start(t, url, "fenced").rest(); err == nil || text != "" {
		t.Errorf("a row with a later token was written: %s", text)
	}
}

// postgres starts a server that ends with the test, and returns its address.
func postgres(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		t.Skip("there is no PostgreSQL on this machine")
	}
	folder, programs := t.TempDir(), filepath.Dir(found[len(found)-1])
	run := func(program string, arguments ...string) *exec.Cmd {
		command := exec.Command(filepath.Join(programs, program), arguments...)
		command.Dir = folder
		if os.Getuid() == 0 { // which PostgreSQL refuses
			const nobody = 65534
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			for place := folder; place != os.TempDir(); place = filepath.Dir(place) {
				if err := os.Chmod(place, 0o711); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chown(folder, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		return command
	}
	data := filepath.Join(folder, "data")
	if out, err := run("initdb", "--pgdata", data, "--auth", "trust", "--username", "app", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := run("postgres", "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+folder, "-c", "fsync=off")
	log, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT)
		_ = server.Wait()
	})
	lines := bufio.NewScanner(log)
	for !strings.Contains(lines.Text(), "ready to accept connections") {
		if !lines.Scan() {
			t.Fatal("PostgreSQL has not started")
		}
	}
	go func() { _, _ = io.Copy(io.Discard, log) }()
	return "postgres://app@/postgres?sslmode=disable&host=" + folder
}
