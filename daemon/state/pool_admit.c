/* SPDX-License-Identifier: Apache-2.0 */
/* pool_admit: what may be promised to sequences; see pool.h. Core thread; nothing here blocks. */
#include "daemon/base/testing.h"
#include "daemon/state/pool.h"

uint64_t pool_promisable(const struct pool *p)
{
	bool more = p->below && p->limits.live_in_ram;

	if (p->limits.overcommit)
		return UINT64_MAX;
	return p->limits.pages + (more ? p->below->room(p->below->context) : 0);
}

uint64_t pool_promised(const struct pool *p)
{
	return p->ceilings + p->surplus + p->unpaid + p->pages.count[PAGE_QUARANTINED];
}

int pool_may_admit(const struct pool *p, uint64_t ceiling)
{
	uint64_t taken = pool_promised(p);

	if (ceiling > p->limits.pages)
		return POOL_NEVER;
	if (p->hybrid && p->images.lanes_free == 0)
		return POOL_WAIT;
	if (!protection(ceilings_are_kept))
		return 0;
	return taken + ceiling <= pool_promisable(p) ? 0 : POOL_WAIT;
}

bool pool_quota_allows(const struct pool *p, uint16_t name_space, uint64_t pages)
{
	const struct pool_share *share = &p->shares[name_space];
	uint64_t taken = share->ceilings + share->surplus + share->unpaid +
			 p->pages.shares[name_space].quarantined;

	if (!share->quota_pages || !protection(quotas_are_kept))
		return true;
	return taken <= share->quota_pages && pages <= share->quota_pages - taken;
}
