// Tutorial has the steps of docs/zh/tutorial.md, in their order.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

func main() {
	client, err := fencepost.Open(fencepost.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	steps := []func(context.Context, *fencepost.Client) error{expiry, release, sell, watchdog, waiting, token, segments, once}
	for _, step := range steps {
		if err := step(ctx, client); err != nil {
			log.Fatal(err)
		}
	}
	nobody, err := fencepost.Open(fencepost.Config{URLs: []string{"http://127.0.0.1:1"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := outage(ctx, nobody); err != nil {
		log.Fatal(err)
	}
}

func expiry(ctx context.Context, client *fencepost.Client) error {
	held, err := client.Mutex("stock/42", fencepost.TTL(10*time.Second)).Lock(ctx)
	if err != nil {
		return err
	}
	return held.Unlock()
}

func release(ctx context.Context, client *fencepost.Client) error {
	held, err := client.Mutex("stock/42").Lock(ctx)
	if err != nil {
		return err
	}
	if err := held.Unlock(); errors.Is(err, fencepost.ErrLost) {
		return err
	}
	return nil
}

func sell(ctx context.Context, client *fencepost.Client) error {
	return client.Mutex("stock/42").Do(ctx, func(held *fencepost.Held) error { // 向服务申请
		return restock(held)
	})
}

func restock(ctx context.Context) error {
	held := fencepost.From(ctx) // 调用方持有的锁：没有的话是 nil
	fmt.Println("令牌", held.Token())
	return held.Check()
}

func watchdog(ctx context.Context, client *fencepost.Client) error {
	// 丢锁时 held 这个 context 被取消，Do 返回 ErrLost。
	return client.Mutex("stock/42").Do(ctx, func(held *fencepost.Held) error {
		if err := work(held); err != nil { // 交给锁下面的每个调用
			return err
		}
		if err := held.Check(); err != nil { // 关键的一步之前，再检查一次
			return err
		}
		fmt.Println("卖出 3")
		return nil
	})
}

func work(ctx context.Context) error { return ctx.Err() }

func waiting(ctx context.Context, client *fencepost.Client) error {
	mutex := client.Mutex("stock/42", fencepost.Wait(3*time.Second))
	held, err := mutex.Lock(ctx)
	if err != nil {
		return err
	}
	return held.Unlock()
}

func token(ctx context.Context, client *fencepost.Client) error {
	var tokens []int64
	for range [2]struct{}{} {
		err := client.Mutex("stock/42").Do(ctx, func(held *fencepost.Held) error {
			tokens = append(tokens, held.Token())
			return nil
		})
		if err != nil {
			return err
		}
	}
	if early, late := tokens[0], tokens[1]; late <= early { // 库存见过 late，就拒绝 early 的写入
		return errors.New("令牌没有变大")
	}
	return nil
}

func segments(ctx context.Context, client *fencepost.Client) error {
	pieces := [20]int{7: 1}          // 每段的库存，放在数据库里：只有一段还剩一件
	for segment := range pieces[:] { // 从随机的一段开始更好
		held, err := client.Mutex(fmt.Sprint("stock/42/", segment)).TryLock(ctx)
		if errors.Is(err, fencepost.ErrBusy) {
			continue // 别人在用：先看下一段，最后再回来等它
		}
		if err != nil {
			return err
		}
		found := pieces[segment] > 0
		if found {
			pieces[segment]--
		}
		if err := held.Unlock(); err != nil || found {
			return err
		}
	}
	return errors.New("卖空了")
}

func once(ctx context.Context, client *fencepost.Client) error {
	for range [3]struct{}{} {
		run, err := client.Once(ctx, "nightly", 24*time.Hour, func(held *fencepost.Held) error {
			fmt.Println("生成报表")
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Println("这台机器跑的：", run.Here)
	}
	return nil
}

func outage(ctx context.Context, client *fencepost.Client) error {
	held, err := client.Mutex("stock/42", fencepost.Wait(2*time.Second)).Lock(ctx)
	switch {
	case errors.Is(err, fencepost.ErrUnreachable):
		fmt.Println("没有互斥：只做允许重复的事")
		return nil
	case err != nil:
		return err
	}
	fmt.Println("正常，令牌", held.Token())
	return held.Unlock()
}
