package main

import (
	"context"
	"fmt"
	"log"

	fencepost "github.com/fencepost/fencepost/clients/go"
)

func main() {
	client, err := fencepost.Open(fencepost.Config{}) // 地址在环境变量 FENCEPOST_URL 里
	if err != nil {
		log.Fatal(err)
	}
	stock := client.Mutex("stock/42")

	// 加锁、租约、持有者标识：一步完成。函数返回之后校验持有者并释放，也是一步。
	err = stock.Do(context.Background(), func(held *fencepost.Held) error {
		fmt.Println("读库存，处理，写库存，令牌", held.Token())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
