// Fenced writes into PostgreSQL so that a holder that was paused, and has lost its lock, changes nothing.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	fencepost "github.com/fencepost/fencepost/clients/go"
	_ "github.com/lib/pq"
)

var errLater = errors.New("a later holder has written the row, or there is no such row")

func main() {
	client, err := fencepost.Open(fencepost.Config{})
	if err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	err = client.Mutex("stock/42").Do(context.Background(), func(held *fencepost.Held) error {
		return add(held, db, 42, 10, held.Token())
	})
	if err != nil {
		log.Fatal(err)
	}
}

// add reads and writes under the lock. The row keeps the greatest token, and refuses a smaller one. The table has the column
// token BIGINT NOT NULL DEFAULT 0.
func add(ctx context.Context, db *sql.DB, id, more int, token int64) error {
	var pieces int
	err := db.QueryRowContext(ctx,
		"UPDATE stock SET token = $2 WHERE id = $1 AND token <= $2 RETURNING pieces", id, token).Scan(&pieces)
	if errors.Is(err, sql.ErrNoRows) {
		return errLater
	}
	if err != nil {
		return err
	}
	done, err := db.ExecContext(ctx,
		"UPDATE stock SET pieces = $3, token = $2 WHERE id = $1 AND token <= $2", id, token, pieces+more)
	if err != nil {
		return err
	}
	if rows, err := done.RowsAffected(); err != nil || rows == 0 {
		return errors.Join(errLater, err)
	}
	fmt.Println("now", pieces+more, "pieces")
	return nil
}
